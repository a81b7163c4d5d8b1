"""How a response is scored: reward functions by name, each in a process that can be killed.

A row that cannot be scored has the outcome ``timeout`` or ``error`` and no score, never a silent 0.
No module here may import torch or polars at module level: scoring processes must start fast.
"""
