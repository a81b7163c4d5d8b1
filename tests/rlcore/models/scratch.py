"""A small model from scratch, and copies of it with another tokenizer configuration."""

import json
from pathlib import Path
from typing import Any

from schemas.model import FromScratch, ModelSection

TEXTS = [
    f"Tom has {n} pens and buys {n + 3}. How many now?\n{n}+{n + 3}\n#### {2 * n + 3}"
    for n in range(10, 99)
]


SCRATCH = ModelSection(
    from_scratch=FromScratch(
        hidden_size=32, num_layers=1, num_heads=1, num_kv_heads=1, vocab_size=300
    ),
    dtype="float32",
    max_tokens=64,
)


def copied(base: Path, target: Path, **edits: Any) -> Path:
    """A model directory whose tokenizer_config.json has ``edits``; None removes a key."""
    target.mkdir()
    for file in base.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    path = target / "tokenizer_config.json"
    config = json.loads(path.read_text()) | edits
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return target
