"""Algorithms: pure functions of arrays and tensors, no I/O.

Advantages (numpy, float64); per-token weights, importance ratios, policy and value losses, KL,
entropy, preferences (torch, imported where it computes); and the objectives that compose them into
``loss(outputs, batch) -> (scalar, metrics)``.
"""
