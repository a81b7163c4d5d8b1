"""Rounds in the store: what stands is read, what is missing is played, one artifact each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import polars as pl

from rlcore.evolve.agents import Agents
from rlcore.evolve.prompts import Row
from rlcore.evolve.rounds import Round, draw_independent, play_round, remembered
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef

ROUNDS, SAMPLES = "evolve_rounds", "evolve_samples"  # kinds
ANSWERS, VERDICTS = "evolve_answers", "evolve_verdicts"
BEFORE = "before"  # role of the round before as a parent


class Evolution:
    """Rounds and independent samples under ``key``, which names all that they depend on but how
    many of them there are: ``evolve_rounds/<key>/000001`` and ``evolve_samples/<key>/000001``.

    ``start``: makes the agents, at the first round that is not there. ``lineage``: of each
    artifact; a round has the one before it as a parent besides. Call ``round`` and ``sample`` with
    1, 2, ... in order, while the key is held.
    """

    def __init__(
        self,
        store: ArtifactStore,
        key: str,
        lineage: Lineage,
        problems: Sequence[Row],
        *,
        start: Callable[[], Agents],
        log: Callable[[str], None],
    ) -> None:
        self.rounds: list[Round] = []
        self.samples: list[pl.DataFrame] = []
        self.parents: dict[str, ArtifactRef] = {}
        self._store, self._key, self._lineage = store, key, lineage
        self._problems, self._start, self._log = problems, start, log

    def round(self, number: int) -> ArtifactRef:
        """Return round ``number``, played with the memory of the rounds before it unless it
        stands, and after the same round."""
        assert number == len(self.rounds) + 1, "a round comes after the one before it"
        last = self.parents.get(f"round-{number - 1:03d}")
        ref = self._find(ROUNDS, number)
        if ref is not None and not self._follows(ref, last):
            self._log(f"{ref.uri} came after another round {number - 1}; it is played again")
            self._store.discard(ref.kind, ref.key)
            ref = None
        if ref is None:
            one = play_round(number, self._problems, remembered(self.rounds), self._agents)
            tables = {ANSWERS: one.answers, VERDICTS: one.verdicts}
            ref = self._put(ROUNDS, number, tables, {} if last is None else {BEFORE: last})
        else:
            one = Round(self._store.table(ref, ANSWERS), self._store.table(ref, VERDICTS))
        self.rounds.append(one)
        self.parents[f"round-{number:03d}"] = ref
        return ref

    def sample(self, number: int) -> ArtifactRef:
        """Return the ``number``-th independent sample of every problem, drawn unless it stands."""
        assert number == len(self.samples) + 1, "a sample comes after the one before it"
        ref = self._find(SAMPLES, number)
        if ref is None:
            drawn = draw_independent(number, self._problems, self._agents)
            ref = self._put(SAMPLES, number, {ANSWERS: drawn}, {})
        else:
            drawn = self._store.table(ref, ANSWERS)
        self.samples.append(drawn)
        self.parents[f"sample-{number:03d}"] = ref
        return ref

    @cached_property
    def _agents(self) -> Agents:
        return self._start()

    def _follows(self, ref: ArtifactRef, last: ArtifactRef | None) -> bool:
        """Return whether the round ``ref`` was played after ``last``; another machine, which made
        ``last`` again, may have sampled other tokens."""
        before = self._store.manifest(ref).parents.get(BEFORE)
        return (before and before.sha256) == (last and last.sha256)

    def _find(self, kind: str, number: int) -> ArtifactRef | None:
        ref = self._store.find_or_discard(kind, self._name(number), self._log)
        if ref is not None:
            self._log(f"{kind} {number} is in the store already: {ref.uri}")
        return ref

    def _put(
        self,
        kind: str,
        number: int,
        tables: Mapping[str, pl.DataFrame],
        parents: Mapping[str, ArtifactRef],
    ) -> ArtifactRef:
        lineage = replace(self._lineage, parents={**self._lineage.parents, **parents})
        return self._store.put(kind, self._name(number), tables=tables, lineage=lineage)

    def _name(self, number: int) -> str:
        return f"{self._key}/{number:06d}"
