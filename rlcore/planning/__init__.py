"""The parts of the dry run: model shape, batch arithmetic, estimates, and their printout.

``rlcore.plan`` puts them together.
"""
