"""Texts that end an answer, wherever tokens begin and end: one rule for every engine.

An answer ends with the first token whose text completes a stop string. The string may begin and
end inside a token: every token up to and with that one was sampled, is kept and is trained, and
what reads the answer as text reads it up to the string. The text is that of all tokens, special
ones included, so that a stop string may name one of them.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.engines.types import Generation, Sampling
from rlcore.models.tokenizer import read_tokenizer
from schemas.outcomes import FinishReason

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

# Tokens looked at besides one per byte of the longest stop string: the text of the first of them
# may be another than it is behind its predecessor.
SPARE_TOKENS = 4


class StopStrings:
    """Finds out which rows are complete, for an engine of the model of ``model_dir``."""

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir

    @cached_property
    def _tokenizer(self) -> "ChatTokenizer":
        return read_tokenizer(Path(self._model_dir), self._model_dir)

    def complete(self, rows: Sequence[Sequence[int]], strings: Sequence[str]) -> list[bool]:
        """Return whether the last token of each row, which has no earlier one that does, completes
        one of ``strings``. Raises UserError where the model's tokenizer cannot be loaded."""
        if not strings:
            return [False] * len(rows)
        # A token has at least one byte of text.
        window = max(len(text.encode()) for text in strings) + SPARE_TOKENS
        texts = self._tokenizer.batch_decode(
            [list(ids[-window:]) for ids in rows], skip_special_tokens=False
        )
        return [any(stop in text for stop in strings) for text in texts]

    def ended(self, generation: Generation, strings: Sequence[str]) -> Generation:
        """Return ``generation`` up to the first token that completes one of ``strings``."""
        ids = generation.token_ids
        done = self.complete([ids[:end] for end in range(1, len(ids) + 1)], strings)
        if True not in done:
            return generation
        end = done.index(True) + 1
        return Generation(ids[:end], generation.logprobs[:end], FinishReason.STOP, generation.stamp)


def answer_text(tokenizer: Any, generation: Generation, sampling: Sampling) -> str:
    """Return an answer as what reads text is given it: without special tokens, and without the stop
    token or stop string that ended it."""
    ids = generation.token_ids
    stopped = generation.finish_reason == FinishReason.STOP
    if stopped and ids and ids[-1] in sampling.stop_token_ids:
        ids = ids[:-1]
    if stopped and sampling.stop:
        return _before_stop(tokenizer, ids, sampling.stop)
    (text,) = tokenizer.batch_decode([ids], skip_special_tokens=True)
    return text


def _before_stop(tokenizer: Any, ids: list[int], strings: Sequence[str]) -> str:
    def text(upto: int, *, spoken: bool) -> str:
        return tokenizer.batch_decode([ids[:upto]], skip_special_tokens=spoken)[0]

    whole = text(len(ids), spoken=False)
    starts = [whole.find(stop) for stop in strings if stop in whole]
    if not starts:
        return text(len(ids), spoken=True)
    start, tokens = min(starts), len(ids)
    before = whole
    while len(before) > start or not whole.startswith(before):  # also within a character's bytes
        tokens -= 1
        before = text(tokens, spoken=False) if tokens else ""
    begun = whole[len(before) : start]  # of the token in which the stop string begins
    added = tokenizer.added_tokens_decoder.get(ids[tokens])
    is_special = added is not None and added.special
    return text(tokens, spoken=True) + ("" if is_special else begun)
