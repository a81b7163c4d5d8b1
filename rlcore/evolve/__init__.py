"""Evolving: over rounds a policy answers, verifiers judge, and the best answers so far are part of
the next round's prompt. No weight changes, and neither agent sees a ground truth.

``reading``, ``memory``: pure. ``prompts``: what the agents are shown. ``agents``: how they are
asked. ``rounds``: one round, as tables. ``evolution``: rounds kept in the store. ``scores``: what
the answers were worth, once all are there.
"""
