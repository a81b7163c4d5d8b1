"""Identity of a prompt, and the validation split that depends on it."""

import hashlib
import json

from rlcore.data.chat import Message

_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True)  # dumps() would make one per row
NO_DEMONSTRATIONS = (
    "data.sources give no training demonstrations, which SFT needs; add a source of messages or"
    " prompt/completion, or set sft.enabled to false"
)


def content_uid(*parts: str | list[Message] | None) -> str:
    """Return 16 hex digits of sha256 over the JSON of ``parts``: a function of content alone."""
    return hashlib.sha256(_JSON.encode(parts).encode()).hexdigest()[:16]


def is_validation(prompt: list[Message], fraction: float) -> bool:
    """Whether a training prompt is kept for validation, by the hash of its messages.

    It does not depend on order, number of rows or seed, so a prompt and its demonstrations are in
    the same split, and adding rows moves none.
    """
    return int(content_uid("validation", prompt), 16) < fraction * 2**64


def no_prompts(split: str) -> str:
    """Return the sentence on sources that give no prompts of ``split``: train, validation, test."""
    if split == "validation":
        return (
            "data: no validation prompts, which alone may choose a checkpoint; set"
            " data.validation_fraction, e.g. to 0.05, or add a source with split: validation"
        )
    return (
        f"data.sources give no {split} prompts; add a source with split: {split} whose rows can be"
        " scored (a prompt, and a ground truth for rule rewards)"
    )
