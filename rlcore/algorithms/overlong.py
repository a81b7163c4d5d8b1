"""Soft penalty for answers near the token limit (DAPO)."""

from __future__ import annotations

import numpy as np


def overlong_penalty(
    lengths: np.ndarray, *, max_tokens: int, cache_tokens: int, factor: float = 1.0
) -> np.ndarray:
    """Return what is added to each row's score, [rows] float64 between -``factor`` and 0.

    ``lengths`` [rows] counts policy tokens only (verl counts tool tokens too). With start =
    ``max_tokens - cache_tokens``: 0 up to start, (start - l) / cache_tokens up to ``max_tokens``,
    -1 beyond; times ``factor`` (DAPO arXiv 2503.14476 eq. 13). ``cache_tokens`` 0 is the step from
    0 to -1 at ``max_tokens``.

    >>> overlong_penalty(np.array([16384, 18432, 20481]), max_tokens=20480, cache_tokens=4096)
    array([ 0. , -0.5, -1. ])
    """
    lengths = np.asarray(lengths, dtype=np.int64)  # unsigned counts would wrap below zero
    if cache_tokens == 0:
        penalty = np.where(lengths > max_tokens, -1.0, 0.0)
    else:
        start = max_tokens - cache_tokens
        penalty = np.clip((start - lengths) / cache_tokens, -1.0, 0.0)
    return factor * penalty + 0.0  # + 0.0: no negative zeros
