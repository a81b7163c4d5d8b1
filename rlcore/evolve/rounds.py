"""One round of all problems as tables, the memory that earlier rounds make, and rounds in the
store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import polars as pl

from rlcore.evolve.agents import INDEPENDENT, POLICY, VERIFIER, Agents, Ask, Reply
from rlcore.evolve.prompts import Entry, Row, best, report_of, vote
from rlcore.rewards.types import prompt_text
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.tables import polars_schema
from schemas.artifacts import ArtifactRef

Memory = Mapping[str, Sequence[Entry]]  # by uid, of all rounds so far
ROUNDS, SAMPLES = "evolve_rounds", "evolve_samples"  # kinds
ANSWERS, VERDICTS = "evolve_answers", "evolve_verdicts"
BEFORE = "before"  # role of the round before as a parent


@dataclass(frozen=True, slots=True)
class Round:
    """The tables ``evolve_answers`` and ``evolve_verdicts`` of one round."""

    answers: pl.DataFrame
    verdicts: pl.DataFrame


def play_round(number: int, problems: Sequence[Row], memory: Memory, agents: Agents) -> Round:
    """Let the policy answer each of ``problems`` with what ``memory`` holds of it, and the
    verifiers judge each answer; ``number``: of the round, from 1."""
    count = agents.section.memory
    asks, shown = [], []
    for row in problems:
        known = best(memory.get(row["uid"], ()), count)
        prompt, entries = agents.prompts.policy(row, known, number)
        asks.append(Ask(prompt, (POLICY, number)))
        shown.append(entries)
    replies = agents.answers(asks)
    answers = _answers(number, asks, shown, replies)
    return Round(answers, _judged(number, problems, replies, agents))


def draw_independent(number: int, problems: Sequence[Row], agents: Agents) -> pl.DataFrame:
    """Return the table ``evolve_answers`` of the ``number``-th independent sample: as the first
    round's answers, by another seed."""
    asks = [Ask(agents.prompts.policy(row, (), 1)[0], (INDEPENDENT, number)) for row in problems]
    return _answers(number, asks, [()] * len(asks), agents.answers(asks))


def remembered(rounds: Sequence[Round]) -> dict[str, list[Entry]]:
    """Return all answers of ``rounds`` with the vote on each, by uid; a round without an answer
    adds nothing."""
    memory: dict[str, list[Entry]] = {}
    for played in rounds:
        grouped = played.verdicts.sort("verifier").group_by("uid").agg("verdict", "report")
        votes = {uid: (verdicts, reports) for uid, verdicts, reports in grouped.iter_rows()}
        for row in played.answers.iter_rows(named=True):
            if row["answer"] is None:
                continue
            verdicts, reports = votes[row["uid"]]
            entry = Entry(
                round=row["round"],
                solution=row["response"],
                report=report_of(verdicts, reports),
                score=vote(verdicts),
                length=row["num_tokens"],
            )
            memory.setdefault(row["uid"], []).append(entry)
    return memory


def _judged(
    number: int, problems: Sequence[Row], replies: Sequence[Reply[str]], agents: Agents
) -> pl.DataFrame:
    """Return the verdicts on each reply that is an answer; one that cannot be read is 0."""
    asks = [
        Ask(prompt, (VERIFIER, number, verifier))
        for row, reply in zip(problems, replies, strict=True)
        if reply.value is not None
        for prompt in [
            agents.prompts.verifier(row, solution=reply.trajectory.text, answer=reply.value)
        ]
        for verifier in range(agents.section.verifiers)
    ]
    rows = [
        {
            "uid": ask.row["uid"],
            "round": number,
            "verifier": ask.names[-1],
            "verdict": 0 if reply.value is None else reply.value.accepts,
            "report": None if reply.value is None else reply.value.report,
            "attempts": reply.attempts,
        }
        for ask, reply in zip(asks, agents.verdicts(asks), strict=True)
    ]
    return pl.DataFrame(rows, schema=polars_schema(VERDICTS))


def _answers(
    number: int,
    asks: Sequence[Ask],
    shown: Sequence[Sequence[Entry]],
    replies: Sequence[Reply[str]],
) -> pl.DataFrame:
    rows = [
        {
            "uid": ask.row["uid"],
            "round": number,
            "prompt": prompt_text(ask.row["prompt"]),
            "memory": [entry.round for entry in entries],
            "response": reply.trajectory.text,
            "turns": [dict(message) for message in reply.trajectory.messages],
            "turn_rewards": [turn.reward for turn in reply.trajectory.turns],
            "answer": reply.value,
            "attempts": reply.attempts,
            "finish_reason": reply.trajectory.last.finish_reason.value,
            "num_tokens": reply.trajectory.num_tokens,
            "detail": reply.trajectory.failure,
        }
        for ask, entries, reply in zip(asks, shown, replies, strict=True)
    ]
    return pl.DataFrame(rows, schema=polars_schema(ANSWERS))


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
        self._problems, self._agents, self._log = problems, cache(start), log

    def round(self, number: int) -> ArtifactRef:
        """Return round ``number``, played with the memory of the rounds before it unless it
        is stored, and after the same round."""
        assert number == len(self.rounds) + 1, "a round comes after the one before it"
        last = self.parents.get(f"round-{number - 1:03d}")
        ref = self._find(ROUNDS, number)
        if ref is not None and not self._follows(ref, last):
            self._log(f"{ref.uri} came after another round {number - 1}; it is played again")
            self._store.discard(ref.kind, ref.key)
            ref = None
        if ref is None:
            one = play_round(number, self._problems, remembered(self.rounds), self._agents())
            tables = {ANSWERS: one.answers, VERDICTS: one.verdicts}
            ref = self._put(ROUNDS, number, tables, {} if last is None else {BEFORE: last})
        tables = (self._store.table(ref, name) for name in (ANSWERS, VERDICTS))
        self.rounds.append(Round(*tables))
        self.parents[f"round-{number:03d}"] = ref
        return ref

    def sample(self, number: int) -> ArtifactRef:
        """Return the ``number``-th independent sample of each problem, drawn unless stored."""
        assert number == len(self.samples) + 1, "a sample comes after the one before it"
        ref = self._find(SAMPLES, number)
        if ref is None:
            drawn = draw_independent(number, self._problems, self._agents())
            ref = self._put(SAMPLES, number, {ANSWERS: drawn}, {})
        self.samples.append(self._store.table(ref, ANSWERS))
        self.parents[f"sample-{number:03d}"] = ref
        return ref

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
