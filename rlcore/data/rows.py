"""The types of a row on its way from a source to the tables: raw, normalised, rejected."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlcore.models.chat import REASONING, Message, Refused, Tools
from schemas.data import DataSection
from schemas.errors import UserError

CONTENT_CHARS = 2000  # of a rejected row, kept for reading
REMEDIES = {
    "over_length": "raise data.max_prompt_tokens or set data.over_length to a truncation",
    "over_length_demonstration": "raise sft.max_tokens",
    "filter": "loosen data.filters",
    "duplicate": "set data.deduplicate to 'off'",
    "near_duplicate": "raise data.near_duplicate_jaccard or set data.deduplicate to 'exact'",
    "contaminated": "remove the rows that the test split holds, or set data.decontaminate to false",
    "null_ground_truth": "fill reward_model.ground_truth",
    "template_rewrites_history": "set model.chat_template",
    "template_opens_otherwise": "set model.chat_template",
    "not_shown": "set model.chat_template to one that shows it, or remove it from the rows",
    "untrained_turn": "remove those turns",
    "template": "set model.chat_template or fix the rows",
}


@dataclass(frozen=True, slots=True)
class RawTable:
    """One file or hub split as read: ``rows`` as dicts, in order. ``source`` names it in errors.

    ``data_source`` (verl's name of a task) overrides the rows' own, and ``fallback`` is that of
    rows without one, None: the file's name; ``instruction`` is appended to the questions of GSM8K,
    MATH and AIME. ``columns``: our names of columns -> those in ``rows``, where they differ.
    ``padded``: null fields of structures may be there because other rows have them, as in Parquet.
    """

    source: str
    split: str
    rows: list[dict[str, Any]]
    form: str | None = None
    data_source: str | None = None
    fallback: str | None = None
    instruction: str = ""
    demonstrations: bool = True
    columns: Mapping[str, str] = field(default_factory=dict)
    padded: bool = False


@dataclass(slots=True)
class Row:
    """One normalised row. ``index`` counts within ``source``, from 0.

    ``prompt``: messages up to the turn to be answered; empty ``solution``: no demonstration.
    ``scored``: it becomes a Prompts row. ``tools``: its own, instead of the environment's.
    """

    source: str
    index: int
    split: str
    subset: str
    data_source: str
    prompt: list[Message]
    solution: list[Message] = field(default_factory=list)
    scored: bool = True
    ability: str = ""
    reward_style: str = "rule"
    ground_truth: str | None = None
    extra_info: str = "{}"
    tools: Tools = ()

    @property
    def prompt_text(self) -> str:
        return "\n".join(message["content"] for message in self.prompt)

    @property
    def messages(self) -> list[Message]:
        return self.prompt + self.solution

    def reject(self, reason: str, detail: str) -> "Reject":
        return Reject(self.source, self.index, reason, detail, shown(self.messages))


class BadRow(Exception):
    """A row that cannot be used; carries (reason, detail)."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that was dropped: the columns of the Rejects table."""

    source: str
    row: int
    reason: str
    detail: str
    content: str


def shown(value: Any) -> str:
    """Return ``value`` as JSON, cut to ``CONTENT_CHARS``; half a character is escaped."""
    text = json.dumps(value, ensure_ascii=False, default=str)[:CONTENT_CHARS]
    return text.encode(errors="backslashreplace").decode()


def said(messages: Iterable[Message]) -> str:
    """Return all that ``messages`` say, reasoning included, a line break between them."""
    texts = ((message.get(REASONING[0]), message["content"]) for message in messages)
    return "\n".join(text for pair in texts for text in pair if text is not None)


def refused_token(
    tokens: Sequence[str], messages: Sequence[Message], tools: Tools = ()
) -> Refused | None:
    """Return why a row is refused where it holds one of the special ``tokens``."""
    text = f"{said(messages)}\n{json.dumps(tools, ensure_ascii=False)}"
    found = (token for token in tokens if token in text)
    why = (Refused("special_token", f"the text holds the token '{token}'") for token in found)
    return next(why, None)


def check_rejects(rejects: Sequence[Reject], totals: dict[str, int], data: DataSection) -> None:
    """Raise ``UserError`` when a source loses more than ``data.max_reject_fraction`` of its rows.

    The error has the number, the most frequent reason with an example, and the remedy.
    """
    for source, total in totals.items():
        lost = [reject for reject in rejects if reject.source == source]
        count = len({reject.row for reject in lost})
        if not count or count <= data.max_reject_fraction * total:
            continue
        # A row may be rejected as a prompt and as a demonstration: it counts once.
        by_row = dict.fromkeys((reject.row, reject.reason) for reject in lost)
        reason, times = Counter(reason for _, reason in by_row).most_common(1)[0]
        example = next(reject for reject in lost if reject.reason == reason)
        raise UserError(
            f"{source}: {count} of {total} rows rejected, over data.max_reject_fraction ="
            f" {data.max_reject_fraction:g}; {times} for '{reason}', as row {example.row}:"
            f" {example.detail}; {REMEDIES.get(reason, 'fix the rows')}, or raise"
            " data.max_reject_fraction"
        )
