"""Training from Python, without an orchestrator: configs -> recipe -> the same loop, in this
process.

Public names are gathered in ``flows.training``.
"""
