"""One round of all problems as tables, and the memory that the tables of earlier rounds make."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from rlcore.evolve.agents import INDEPENDENT, POLICY, VERIFIER, Agents, Ask, Reply
from rlcore.evolve.memory import Entry, best, report_of, vote
from rlcore.evolve.prompts import Row
from rlcore.evolve.reading import Verdict
from rlcore.rewards.types import prompt_text
from schemas.chats import MESSAGES

Memory = Mapping[str, Sequence[Entry]]  # by uid, of all rounds so far
_ANSWERS: dict[str, Any] = {
    "uid": pl.String,
    "round": pl.Int32,
    "prompt": pl.String,
    "memory": pl.List(pl.Int32),
    "response": pl.String,
    "turns": MESSAGES,
    "turn_rewards": pl.List(pl.Float64),
    "answer": pl.String,
    "attempts": pl.Int32,
    "finish_reason": pl.String,
    "num_tokens": pl.Int32,
    "detail": pl.String,
}
_VERDICTS: dict[str, Any] = {
    "uid": pl.String,
    "round": pl.Int32,
    "verifier": pl.Int32,
    "verdict": pl.Int32,
    "report": pl.String,
    "attempts": pl.Int32,
}


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
    answers = pl.DataFrame(
        [
            _answer(number, ask, entries, reply)
            for ask, entries, reply in zip(asks, shown, replies, strict=True)
        ],
        schema=_ANSWERS,
    )
    return Round(answers, _judged(number, problems, replies, agents))


def draw_independent(number: int, problems: Sequence[Row], agents: Agents) -> pl.DataFrame:
    """Return the table ``evolve_answers`` of the ``number``-th independent sample: as the first
    round's answers, by another seed."""
    asks = [Ask(agents.prompts.policy(row, (), 1)[0], (INDEPENDENT, number)) for row in problems]
    replies = agents.answers(asks)
    rows = [_answer(number, ask, (), reply) for ask, reply in zip(asks, replies, strict=True)]
    return pl.DataFrame(rows, schema=_ANSWERS)


def remembered(rounds: Sequence[Round]) -> dict[str, list[Entry]]:
    """Return all answers of ``rounds`` with the vote on each, by uid; a round without an answer
    adds nothing."""
    memory: dict[str, list[Entry]] = {}
    for played in rounds:
        votes = votes_of(played.verdicts)
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


def votes_of(verdicts: pl.DataFrame) -> dict[str, tuple[list[int], list[str | None]]]:
    """Return the verdicts and reports on each problem's answer, in the order of the verifiers."""
    grouped = verdicts.sort("verifier").group_by("uid", maintain_order=True)
    rows = grouped.agg("verdict", "report").iter_rows()
    return {uid: (given, reports) for uid, given, reports in rows}


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
    judged = agents.verdicts(asks)
    rows = [_verdict(number, ask, reply) for ask, reply in zip(asks, judged, strict=True)]
    return pl.DataFrame(rows, schema=_VERDICTS)


def _answer(number: int, ask: Ask, shown: Sequence[Entry], reply: Reply[str]) -> dict[str, Any]:
    trajectory = reply.trajectory
    return {
        "uid": ask.row["uid"],
        "round": number,
        "prompt": prompt_text(ask.row["prompt"]),
        "memory": [entry.round for entry in shown],
        "response": trajectory.text,
        "turns": [dict(message) for message in trajectory.messages],
        "turn_rewards": [turn.reward for turn in trajectory.turns],
        "answer": reply.value,
        "attempts": reply.attempts,
        "finish_reason": trajectory.last.finish_reason.value,
        "num_tokens": trajectory.num_tokens,
        "detail": trajectory.failure,
    }


def _verdict(number: int, ask: Ask, reply: Reply[Verdict]) -> dict[str, Any]:
    verdict = reply.value
    return {
        "uid": ask.row["uid"],
        "round": number,
        "verifier": ask.names[-1],
        "verdict": 0 if verdict is None else verdict.accepts,
        "report": None if verdict is None else verdict.report,
        "attempts": reply.attempts,
    }
