"""Recipe section ``retrain``: when a recipe is trained again, from what, and what may replace the
champion."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from zoneinfo import available_timezones

from pydantic import Field, field_validator

from schemas.errors import did_you_mean
from schemas.judges import may_verify
from schemas.section import Section

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
# The five fields of crontab(5): name, least, most, and the first number's names.
_CRON = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    ("weekday", 0, 7, {name: number for number, name in enumerate(_DAYS)}),
)
_LONGEST = dict(enumerate((31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), 1))  # days, by month
_PART = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d+))?")

WIN_RATE = "win_rate"  # among metrics and guards


class RetrainSection(Section):
    """Retraining behind a gate (docs/do/retrain.md); it is in no cache key."""

    cron: str | None = Field(
        default=None,
        description="when its deployment starts one: minute, hour, day of the month, month, weekday"
        " (crontab(5)), e.g. '0 3 * * 1' = Mondays at 03:00; null = only by hand",
    )
    timezone: str = Field(
        default="UTC", description="of cron: a name of the IANA database, e.g. Europe/Berlin"
    )
    start: Literal["base", "champion"] = Field(
        default="base",
        description="what training begins with: the recipe's model, or the champion's export, on"
        " which RL continues without another SFT",
    )
    metric: Literal["accuracy", "sampled_accuracy", "score", "win_rate"] = Field(
        default="accuracy",
        description="what champion and candidate are compared by, per test prompt: whether the"
        " greedy answer is right, share of right sampled answers, reward of the greedy answer,"
        " which of the two greedy answers the judge of evaluate.win_rate prefers",
    )
    primary: str = Field(
        default="all",
        min_length=1,
        description="set of test prompts on which a candidate must be better: all, a data source,"
        " or source:subset",
    )
    guards: tuple[str, ...] = Field(
        default=(),
        description="sets on which it must not lose more than margin; win_rate = all prompts, by"
        " the judge of evaluate.win_rate: 0.5 less margin must be won, whatever metric is",
    )
    margin: float = Field(
        default=0.01, ge=0, description="in units of metric: 0.01 = a hundredth of the accuracy"
    )
    min_new_rows: int = Field(
        default=1,
        ge=1,
        description="rows in files that the champion has not seen, below which there is nothing"
        " new; a new commit of a hub dataset counts as enough",
    )
    push: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][\w.-]*/[\w.-]+$",
        description="hub model repository (owner/name) that a new champion is uploaded to, private"
        " where it is made; null = none",
    )

    @property
    def compares(self) -> bool:
        """Whether a judge compares the answers of champion and candidate."""
        return WIN_RATE in (self.metric, *self.guards)

    @field_validator("cron")
    @classmethod
    def _is_cron(cls, value: str | None) -> str | None:
        problem = next(_cron_problems(value), None) if value is not None else None
        if problem is not None:
            raise ValueError(
                f"{problem}; write minute, hour, day of the month, month and weekday as in"
                " crontab(5), e.g. '0 3 * * 1' for Mondays at 03:00"
            )
        return value

    @field_validator("timezone")
    @classmethod
    def _is_timezone(cls, value: str) -> str:
        known = available_timezones()
        if value not in known:
            raise ValueError(
                f"there is no such time zone{did_you_mean(value, known)}; give a name of the IANA"
                " database, e.g. Europe/Berlin"
            )
        return value

    @field_validator("guards")
    @classmethod
    def _once_each(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = next((name for name in value if value.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} is named twice; leave one")
        return value


def _cron_problems(text: str) -> Iterator[str]:
    """Yield what keeps ``text`` from being five fields of crontab(5)."""
    fields = text.split()
    if len(fields) != len(_CRON):
        yield f"it has {len(fields)} fields and a cron expression 5"
        return
    for field, (name, least, most, names) in zip(fields, _CRON, strict=True):
        for part in field.split(","):
            found = _PART.fullmatch(part.lower())
            if found is None:
                yield f"its {name} {field!r} is neither *, a number, a range, a step nor a list"
                return
            ends = [_number(found[end], names) for end in ("first", "last") if found[end]]
            step = int(found["step"] or 1)
            outside = any(end is None or not least <= end <= most for end in ends)
            if (
                outside
                or step < 1
                or [e for e in ends if e is not None] != sorted(e for e in ends if e is not None)
            ):
                yield f"its {name} {field!r} is outside of {least} to {most}"
                return
    days, months, weekdays = (
        _numbers(field, *bounds) for field, bounds in zip(fields[2:], _CRON[2:], strict=True)
    )
    every_weekday = {day % 7 for day in weekdays} == set(range(7))
    if every_weekday and min(days) > max(_LONGEST[month] for month in months):
        yield f"its day of the month {fields[2]!r} is in no month of {fields[3]!r}"


def _numbers(field: str, name: str, least: int, most: int, names: Mapping[str, int]) -> set[int]:
    """Return the meaning of a field without a problem."""
    found: set[int] = set()
    for part in field.lower().split(","):
        match = _PART.fullmatch(part)
        assert match is not None, f"the {name} was looked at"
        first = _number(match["first"], names) if match["first"] else least
        last = _number(match["last"], names) if match["last"] else first
        assert first is not None, f"the {name} was looked at"
        assert last is not None, f"the {name} was looked at"
        if not match["first"] or (match["step"] and not match["last"]):
            last = most
        found |= set(range(first, last + 1, int(match["step"] or 1)))
    return found


def _number(text: str, names: Mapping[str, int]) -> int | None:
    return int(text) if text.isdecimal() else names.get(text)


def retrain_rules(recipe: Any) -> Iterator[str]:
    """Yield a sentence for each rule between the section and the rest of ``recipe``."""
    section = recipe.retrain
    if section is None:
        return
    if section.metric == "sampled_accuracy" and recipe.evaluate.samples == 1:
        yield (
            "retrain.metric = 'sampled_accuracy' and evaluate.samples = 1 samples none; raise"
            " evaluate.samples, or set retrain.metric to 'accuracy'"
        )
    if section.metric not in ("score", WIN_RATE) and not any(
        may_verify(function, recipe.judges) for function in recipe.reward.functions
    ):
        yield (
            f"retrain.metric = '{section.metric}' and reward.functions holds no function that"
            " checks correctness; add one of weight 0, or set retrain.metric to 'score'"
        )
    if section.compares and recipe.evaluate.win_rate is None:
        key = "metric" if section.metric == WIN_RATE else "guards"
        yield (
            f"retrain.{key} names win_rate and evaluate.win_rate is null, whose judge compares the"
            " answers; set evaluate.win_rate.judge"
        )
    win_rate = recipe.evaluate.win_rate
    if section.start == "champion" and win_rate is not None and win_rate.against == "sft":
        yield (
            "retrain.start = 'champion' continues without SFT, with whose answers"
            " evaluate.win_rate.against = 'sft' compares; set it to base, the champion's model, or"
            " retrain.start to 'base'"
        )
    ptx = recipe.rl.ptx
    if section.start == "champion" and ptx is not None and ptx.path is None:
        yield (
            "retrain.start = 'champion' continues without SFT, whose demonstrations rl.ptx mixes"
            " in; set rl.ptx.path to a file of text, or retrain.start to 'base'"
        )
