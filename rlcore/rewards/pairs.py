"""Pairs of responses that a judge compares, each read in both orders."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from rlcore.rewards.judge import JudgeFunction
from rlcore.rewards.judges.setup import prepare_cache, setup_of
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rewards.unscored_rows import check_unscored
from schemas.recipe import Recipe

_ASKED = 256  # questions between two looks at how many have no answer


@dataclass(frozen=True, slots=True)
class Pair:
    """Two responses to one prompt; ``prompt``: the text of its messages."""

    prompt: str
    ground_truth: str | None
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the first of a pair is worth against the second, 1 better, 0.5 as good, 0 worse:
    where the judge read it ``before`` the other, and ``after`` it; None where it gave no verdict.

    Equal responses are as good as each other, and nobody ``asked``. ``verdicts``: what the judge
    answered, in that order, as in the column of the tables.
    """

    before: float | None
    after: float | None
    asked: bool = True
    verdicts: tuple[Any, Any] = (None, None)

    @property
    def value(self) -> float | None:
        """The mean over both orders; None without a verdict in each."""
        if self.before is None or self.after is None:
            return None
        return (self.before + self.after) / 2

    def verdicts_json(self, judge: str) -> str | None:
        """Return ``verdicts`` of the judge of that name as a column of the tables holds them."""
        orders = zip(("before", "after"), self.verdicts, strict=True)
        said = {f"{order}/{judge}": verdict for order, verdict in orders if verdict}
        return json.dumps(said, sort_keys=True) if said else None


def compare(
    recipe: Recipe, judge: str, pairs: Sequence[Pair], *, rows: str, log: Callable[[str], None]
) -> list[Comparison]:
    """Return what the judge of that name says of each pair, in order; it is asked from this
    process, and only what its cache does not hold.

    Raises RewardFailureError when more of the answers than the recipe allows hold no verdict
    (``rows`` says what they are, in the plural), CallsSpent when the run may ask no more, and
    UserError without the judge's key.
    """
    setup = setup_of(recipe, {judge: recipe.judges[judge]})
    prepare_cache(setup, recipe.store, log)
    asked = [number for number, pair in enumerate(pairs) if pair.first != pair.second]
    questions = [_row(pairs[number], swapped) for number in asked for swapped in (False, True)]
    answers: list[Reward] = []
    with closing(JudgeFunction(judge, setup)) as function:
        for start in range(0, len(questions), _ASKED):  # a judge that is gone ends them early
            answers += function.score(questions[start : start + _ASKED], 0.0)
            said = [(each.outcome, each.detail) for each in answers]
            check_unscored(said, recipe.reward, rows=rows, of=len(questions))
    compared = [Comparison(0.5, 0.5, asked=False)] * len(pairs)
    for number, before, after in zip(asked, answers[::2], answers[1::2], strict=True):
        turned = None if after.score is None else 1.0 - after.score
        said = _verdict(before), _verdict(after)
        compared[number] = Comparison(before.score, turned, verdicts=said)
    return compared


def _row(pair: Pair, swapped: bool) -> RewardRow:
    first, second = (pair.second, pair.first) if swapped else (pair.first, pair.second)
    return RewardRow(
        "", "", first, pair.ground_truth, {}, "stop", 1, prompt=pair.prompt, other=second
    )


def _verdict(answer: Reward) -> Any:
    return next(iter(answer.verdicts.values()), None)
