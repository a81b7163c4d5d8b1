"""Recipe section ``retrain``: when a recipe is trained again, from what, and what may replace the
champion."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal
from zoneinfo import available_timezones

from cronsim import CronSim, CronSimError
from pydantic import field_validator

from schemas.errors import did_you_mean
from schemas.judges import may_verify
from schemas.section import Section, setting

WIN_RATE = "win_rate"  # among metrics and guards


class RetrainSection(Section):
    """Retraining behind a gate (docs/do/retrain.md); it is in no cache key."""

    cron: str | None = setting(
        None,
        "when its deployment starts one: minute, hour, day of the month, month, weekday"
        " (crontab(5)), e.g. '0 3 * * 1' = Mondays at 03:00; null = only by hand",
    )
    timezone: str = setting("UTC", "of cron: a name of the IANA database, e.g. Europe/Berlin")
    start: Literal["base", "champion"] = setting(
        "base",
        "what training begins with: the recipe's model, or the champion's export, on"
        " which RL continues without another SFT",
    )
    metric: Literal["accuracy", "sampled_accuracy", "score", "win_rate"] = setting(
        "accuracy",
        "what champion and candidate are compared by, per test prompt: whether the"
        " greedy answer is right, share of right sampled answers, reward of the greedy answer,"
        " which of the two greedy answers the judge of evaluate.win_rate prefers",
    )
    primary: str = setting(
        "all",
        "set of test prompts on which a candidate must be better: all, a data source,"
        " or source:subset",
        min_length=1,
    )
    guards: tuple[str, ...] = setting(
        (),
        "sets on which it must not lose more than margin; win_rate = all prompts, by"
        " the judge of evaluate.win_rate: 0.5 less margin must be won, whatever metric is",
    )
    margin: float = setting(0.01, "in units of metric: 0.01 = a hundredth of the accuracy", ge=0)
    min_new_rows: int = setting(
        1,
        "rows in files that the champion has not seen, below which there is nothing"
        " new; a new commit of a hub dataset counts as enough",
        ge=1,
    )
    push: str | None = setting(
        None,
        "hub model repository (owner/name) that a new champion is uploaded to, private"
        " where it is made; null = none",
        pattern=r"^[A-Za-z0-9][\w.-]*/[\w.-]+$",
    )

    @property
    def compares(self) -> bool:
        """Whether a judge compares the answers of champion and candidate."""
        return WIN_RATE in (self.metric, *self.guards)

    @field_validator("cron")
    @classmethod
    def _is_cron(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            if len(value.split()) != 5:
                raise CronSimError("wrong number of fields")
            CronSim(value, datetime(2000, 1, 1))
        except CronSimError as error:
            raise ValueError(
                f"{error}; write minute, hour, day of the month, month and weekday as in"
                " crontab(5), e.g. '0 3 * * 1' for Mondays at 03:00"
            ) from None
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
