"""Evolving: over rounds a policy answers, verifiers judge, and the best answers so far are part of
the next round's prompt. No weight changes, and neither agent sees a ground truth.

``prompts``: the memory, and what the agents are shown. ``agents``: how they are asked and read.
``rounds``: rounds as tables, kept in the store. ``scores``: what the answers were worth, once all
are there.
"""
