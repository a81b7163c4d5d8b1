"""Engines and tokenizers that answer by a function: for tests of the code that uses the answers."""

from collections.abc import Callable, Iterator, Sequence

from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Generation, Sampling
from rlcore.models.weight_digest import WeightStamp

STAMP = WeightStamp(0, "digest")
Generate = Callable[[list[list[int]], list[int], Sampling], list[Generation]]


class ScriptedEngines(EnginePool):
    """Answers by ``generate``; the last request completes first."""

    def __init__(self, generate: Generate) -> None:
        self._generate = generate

    def stream(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> Iterator[tuple[int, Generation]]:
        done = self._generate([list(prompt) for prompt in prompts], list(seeds), sampling)
        yield from reversed(list(enumerate(done)))

    def pulled(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> Iterator[tuple[int, Generation]]:
        yield from self.stream(prompts, seeds, sampling)


class ScriptedTokenizer:
    """Decodes a row by ``decode``."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode

    def batch_decode(self, rows: list[list[int]], *, skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return [self._decode(ids) for ids in rows]
