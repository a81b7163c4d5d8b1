"""What papers define: advantages, ratios, losses, KL, aggregation, statistics. Pure functions of
arrays and tensors, without I/O, models or processes.

Advantages (numpy, float64); per-token weights, importance ratios, policy and value losses, KL,
entropy, preferences (torch, imported where it computes); and the objectives that compose them into
``loss(outputs, batch) -> (scalar, metrics)``.
"""
