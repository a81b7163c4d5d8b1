"""One seed per named stream: every random choice is a function of (recipe seed, names)."""

import hashlib
import json


def stream_seed(seed: int, *parts: str | int) -> int:
    """Return a 63-bit non-negative seed for the stream that ``parts`` name.

    The first 63 bits of sha256 over the JSON list ``[seed, *parts]``, so neither process, order of
    calls nor Python version matters, and ``"1"`` and ``1`` name different streams. Example:
    ``stream_seed(recipe.seed, "rollout", iteration, uid, sample)``.
    """
    digest = hashlib.sha256(json.dumps([seed, *parts]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
