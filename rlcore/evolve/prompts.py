"""The vote on a solution, and what the agents are shown: a problem and the memory, or a problem
and a solution, as token ids.

A problem is given by its messages alone. Ground truths and whatever else a row of the data holds
stay out of the rows that ``problems_of`` returns, which are all that an agent, or an environment
of its, is given.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from rlcore.models.chat import Refused, Tools, encode_prompts
from rlcore.rewards.types import prompt_text
from rlcore.rollout.turns import harmless
from schemas.errors import UserError
from schemas.evolve import EvolveSection

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class Entry:
    """A solution that a round came to. ``score``: the vote, 0 or 1. ``length``: tokens that the
    policy sampled for it."""

    round: int
    solution: str
    report: str
    score: int
    length: int


def vote(verdicts: Sequence[int]) -> int:
    """Return 1 where more than half of ``verdicts`` (0 or 1 each) are 1, else 0: a tie rejects.

    >>> vote([1, 1, 0]), vote([1, 0]), vote([])
    (1, 0, 0)
    """
    return int(2 * sum(verdicts) > len(verdicts))


def report_of(verdicts: Sequence[int], reports: Sequence[str | None]) -> str:
    """Return the report of the first verifier that agrees with the vote; "" where none gave one.

    ``reports``: None of a verifier that could not be read.
    """
    decision = vote(verdicts)
    agreeing = (
        report
        for verdict, report in zip(verdicts, reports, strict=True)
        if report is not None and verdict == decision
    )
    return next(agreeing, "")


def best(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Return the ``count`` best of ``entries``, the best first: those with the lowest sum of two
    ranks, by score from high to low and by length from short to long.

    A rank counts the entries that are strictly better, so equal ones share a rank. Of equal sums
    the higher score comes first, then the later round.
    """

    def order(entry: Entry) -> tuple[int, int, int]:
        by_score = sum(other.score > entry.score for other in entries)
        by_length = sum(other.length < entry.length for other in entries)
        return by_score + by_length, -entry.score, -entry.round

    return sorted(entries, key=order)[:count]


TEMPLATES = Path(__file__).parent / "templates"
Row = dict[str, Any]
_JINJA = SandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
_ENTRY = {"solution": "s", "report": "r", "score": 0, "round": 1}
_SAMPLES: dict[str, dict[str, Any]] = {  # what each text may name
    "policy_prompt": {"problem": "p", "memory": [_ENTRY], "round": 2},
    "verifier_prompt": {"problem": "p", "solution": "s", "answer": "a"},
    "scored_as": {"answer": "a"},
}


def with_templates(section: EvolveSection) -> EvolveSection:
    """Return ``section`` with the text of each template in place of null."""
    texts = {
        name: (TEMPLATES / f"{name.removesuffix('_prompt')}.jinja").read_text(encoding="utf-8")
        for name in ("policy_prompt", "verifier_prompt")
        if getattr(section, name) is None
    }
    return section.model_copy(update=texts)


def check_templates(section: EvolveSection) -> None:
    """Raise UserError for a template of ``section`` that cannot be rendered, or shows nothing."""
    filled = with_templates(section)
    for name, values in _SAMPLES.items():
        try:
            text = _JINJA.from_string(getattr(filled, name)).render(**values)
        except TemplateError as error:
            raise UserError(
                f"evolve.{name} is no template of {', '.join(values)}: {error}; correct it"
            ) from None
        if not text.strip():
            raise UserError(f"evolve.{name} renders to nothing; write what is to be said")


def problems_of(prompts: pl.DataFrame) -> list[Row]:
    """Return what the agents may know of each row of the Prompts table, in order: its messages, and
    of ``extra_info`` the seed of an environment alone, since data sets keep solutions there."""
    rows = []
    for row in prompts.iter_rows(named=True):
        seed = json.loads(row["extra_info"]).get("seed")
        extra = {"seed": seed} if isinstance(seed, int) else {}
        hidden = {"ground_truth": None, "extra_info": json.dumps(extra)}
        kept = {name: row[name] for name in ("uid", "data_source", "prompt", "reward_style")}
        rows.append({**kept, **hidden})
    return rows


def scored_text(section: EvolveSection, answer: str) -> str:
    """Return ``answer`` as the response that reward functions read."""
    if section.answer == "text":
        return answer
    return _JINJA.from_string(section.scored_as).render(answer=answer)


@dataclass(frozen=True)
class AgentPrompts:
    """Prompts of both agents in the tokens of one model.

    ``max_tokens``: of a prompt with all turns; each prompt leaves room for one turn. ``tools``:
    JSON schemas of what the policy can call.
    """

    section: EvolveSection
    tokenizer: "ChatTokenizer"
    max_tokens: int
    tools: Tools = ()

    def check(self, problems: Sequence[Row]) -> None:
        """Raise UserError for a problem that the policy or a verifier cannot be asked: its prompt
        leaves no room for a turn."""
        for row in problems:
            self.policy(row, (), 1)
            self.verifier(row, solution="?", answer="?")

    def policy(self, row: Row, memory: Sequence[Entry], number: int) -> tuple[Row, list[Entry]]:
        """Return the policy's prompt in round ``number``, and the entries that it shows: those of
        ``memory``, the best first, without the last ones where there is no room for them.

        Raises UserError where there is none for the problem alone.
        """
        *before, last = row["prompt"]
        shown = [self._cut(entry) for entry in memory]
        for count in range(len(shown), -1, -1):
            said = [{name: getattr(entry, name) for name in _ENTRY} for entry in shown[:count]]
            text = self._policy.render(problem=last["content"], memory=said, round=number)
            messages = [*before, {**last, "content": text}]
            ids = self._encoded(row, messages, self.tools)
            if len(ids) <= self._room:
                return {**row, "prompt": messages, "prompt_ids": ids}, list(memory[:count])
        raise self._too_long(row, "policy_prompt", len(ids))

    def verifier(self, row: Row, *, solution: str, answer: str) -> Row:
        """Return a verifier's prompt on ``solution``; where there is no room for all of it, its
        beginning is left out, then that of ``answer``. Raises UserError where there is none for the
        problem alone."""
        problem = prompt_text([one for one in row["prompt"] if one["role"] != "system"])
        parts = {"solution": solution, "answer": answer}
        parts = {name: harmless(part, self.tokenizer) for name, part in parts.items()}
        while True:
            text = self._verifier.render(problem=problem, **parts)
            messages = [{"role": "user", "content": text}]
            ids = self._encoded(row, messages, ())
            over = len(ids) - self._room
            if over <= 0:
                return {**row, "prompt": messages, "prompt_ids": ids}
            name = next((name for name, part in parts.items() if part), None)
            if name is None:
                raise self._too_long(row, "verifier_prompt", len(ids))
            left = max(0, len(self._offsets(parts[name])) - over)
            shorter = self._end(parts[name], left)
            # Tokens that are parts of one character begin at the same place.
            parts[name] = shorter if len(shorter) < len(parts[name]) else parts[name][1:]

    @cached_property
    def _policy(self) -> Template:
        return _JINJA.from_string(with_templates(self.section).policy_prompt or "")

    @cached_property
    def _verifier(self) -> Template:
        return _JINJA.from_string(with_templates(self.section).verifier_prompt or "")

    @property
    def _room(self) -> int:
        return self.max_tokens - self.section.max_new_tokens

    def _cut(self, entry: Entry) -> Entry:
        solution, report = (
            self._end(harmless(text, self.tokenizer), self.section.summary_tokens)
            for text in (entry.solution, entry.report)
        )
        return replace(entry, solution=solution, report=report)

    def _end(self, text: str, most: int) -> str:
        """Return the last ``most`` tokens of ``text``, where its answer is."""
        offsets = self._offsets(text)
        if len(offsets) <= most:
            return text
        return text[offsets[-most][0] :] if most else ""

    def _offsets(self, text: str) -> Sequence[tuple[int, int]]:
        encoded = self.tokenizer([text], add_special_tokens=False, return_offsets_mapping=True)
        return encoded["offset_mapping"][0]

    def _encoded(
        self, row: Row, messages: list[dict[str, str]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        (ids,) = encode_prompts(self.tokenizer, [messages], tools)
        if isinstance(ids, Refused):
            raise UserError(f"problem '{row['uid']}': {ids.detail}")
        return ids

    def _too_long(self, row: Row, name: str, tokens: int) -> UserError:
        return UserError(
            f"problem '{row['uid']}' is {tokens} tokens in evolve.{name}, and model.max_tokens ="
            f" {self.max_tokens} leaves {self._room} beside evolve.max_new_tokens ="
            f" {self.section.max_new_tokens}; shorten evolve.{name}, lower evolve.max_new_tokens or"
            " raise model.max_tokens"
        )
