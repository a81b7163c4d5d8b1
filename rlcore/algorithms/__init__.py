"""Algorithms: pure functions of arrays and tensors, no I/O.

Advantages (numpy, float64); per-token weights, clipped policy loss, KL estimators, entropy (torch);
and the objectives that compose them into ``loss(outputs, batch) -> (scalar, metrics)``.
"""
