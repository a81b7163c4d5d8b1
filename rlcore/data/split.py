"""Identity of a prompt, and the splits that depend on it."""

import hashlib
import json

import numpy as np

from rlcore.models.chat import Message

_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True)  # dumps() would make one per row
NO_DEMONSTRATIONS = (
    "data.sources give no training demonstrations, which SFT needs; add a source of messages or"
    " prompt/completion, or set sft.enabled to false"
)


def content_uid(*parts: str | list[Message] | None) -> str:
    """Return 16 hex digits of sha256 over the JSON of ``parts``: a function of content alone."""
    return hashlib.sha256(_JSON.encode(parts).encode()).hexdigest()[:16]


def tenth_of(text: str) -> int:
    """Return which of ten equal shares ``text`` falls into, from 0, by its hash."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 10


def draw_of(prompt: list[Message]) -> int:
    """Return where a prompt lies in the draw that splits are cut from: a uint64, by the hash of its
    messages.

    It does not depend on order, number of rows or seed, so a prompt and its demonstrations are in
    the same split, and adding rows moves none.
    """
    return int(content_uid("validation", prompt), 16)


def last_for_validation(draws: np.ndarray, fraction: float) -> int | None:
    """Return up to which of ``draws`` (uint64, of training prompts) a prompt is for validation;
    None: none is.

    At least one is, where ``fraction`` is above 0: of few prompts often none is in the share.
    """
    if not fraction or not len(draws):
        return None
    return max(int(fraction * 2**64) - 1, int(draws.min()))


def first_for_test(draws: np.ndarray, fraction: float) -> int | None:
    """Return from which of ``draws`` on a prompt is for the test, as ``last_for_validation``: the
    other end of the draw, so that neither fraction moves prompts of the other."""
    if not fraction or not len(draws):
        return None
    return min(2**64 - int(fraction * 2**64), int(draws.max()))


def no_prompts(split: str) -> str:
    """Return the sentence on sources that give no prompts of ``split``: train, validation, test."""
    if split == "validation":
        return (
            "data: no validation prompts, which alone may choose a checkpoint; set"
            " data.validation_fraction, e.g. to 0.05, or add a source with split: validation"
        )
    share = "set data.test_fraction, e.g. to 0.05, or " if split == "test" else ""
    return (
        f"data.sources give no {split} prompts; {share}add a source with split: {split} whose rows"
        " can be scored (a prompt, and a ground truth for rule rewards)"
    )
