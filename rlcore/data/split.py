"""Identity of a prompt, and the validation split that hangs on it."""

import hashlib
import json

from rlcore.data.chat import Message


def content_uid(*parts: str | list[Message] | None) -> str:
    """Return 16 hex digits of sha256 over the JSON of ``parts``: a matter of content alone."""
    text = json.dumps(parts, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_validation(prompt: list[Message], fraction: float) -> bool:
    """Whether a training prompt is kept for validation, by the hash of its messages.

    Neither order nor number of rows nor seed matters, so a prompt and its demonstrations stay on
    the same side, and rows added later move none.
    """
    return int(content_uid("validation", prompt), 16) < fraction * 2**64
