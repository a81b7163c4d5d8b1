"""Reward functions by name: refused early in a sentence, combined by weight, never a silent 0."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlcore.rewards.calls import AsyncFunction
from rlcore.rewards.registry import Spec, check_functions, combine, reward_of
from rlcore.rewards.registry import build as build_one
from rlcore.rewards.types import Failure, Reward, RewardRow
from schemas.errors import UserError
from tests.inputs import ROOT


@pytest.fixture(autouse=True)
def samples_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def row(response: str, prompt: str | None = "Hi", truth: str = "72") -> RewardRow:
    return RewardRow("t", "source", response, truth, {"a": 1}, "stop", 3, prompt)


def build(specs: list[Spec]) -> Callable[[RewardRow], Reward]:
    """Return the weighted sum, all in this process."""
    check_functions(specs)
    functions = [
        build_one(name, options, f"reward.functions[{i}]")
        for i, (name, _, options) in enumerate(specs)
    ]

    def score(one: RewardRow) -> Reward:
        said = [
            asyncio.run(function.score(one))
            if isinstance(function, AsyncFunction)
            else function.convert(one, *function.call([one]))
            for function in functions
        ]
        return combine(
            one, [(name, weight, s) for (name, weight, _), s in zip(specs, said, strict=True)]
        )

    return score


BAD: dict[str, tuple[list[tuple[str, float, Mapping[str, Any]]], str]] = {
    "unknown": ([("gms8k", 1, {})], r"functions\[0\].name = 'gms8k' is not a reward.*mean 'gsm8k'"),
    "option": (
        [("gsm8k", 1, {"mod": "x"})],
        r"options.mod is not an option of 'gsm8k'.*mean 'mode'",
    ),
    "option value": (
        [("gsm8k", 1, {"mode": "numerc"})],
        r"functions\[0\]: option mode = 'numerc' .*must be strict or numeric; did you mean 'numeri",
    ),
    "no options": (
        [("arithmetic", 1, {"x": 1})],
        "options.x is not an option of 'arithmetic'.*none",
    ),
    "twice": ([("gsm8k", 1, {}), ("gsm8k", 2, {})], r"functions\[1\].name = 'gsm8k' is listed"),
    "model with options": ([("reward_model", 1, {"a": 1})], "'reward_model' takes none"),
    "module": ([("nowhere.at_all:f", 1, {})], "there is no module 'nowhere.at_all'"),
    "dotted": ([("reward_samples:", 1, {})], "must be written 'package.module:function'"),
    "path": ([("a/b.py:f", 1, {})], r"there is no file .*a/b\.py;"),
    "function": ([("reward_samples:lenght", 1, {})], "has no lenght.*did you mean 'length'"),
    "not callable": ([("reward_samples:NOT_CALLABLE", 1, {})], "is of type int, not a function"),
    "signature": (
        [("reward_samples:wrong_signature", 1, {})],
        r"has the signature \(response: str\).*must take \(prompt, response\) or",
    ),
    "user option": (
        [("reward_samples:rich", 1, {"bonsu": 1})],
        r"options.bonsu is not a parameter of 'reward_samples:rich'.*did you mean 'bonus'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work_is_refused_before_any_row(case: str) -> None:
    specs, sentence = BAD[case]
    with pytest.raises(UserError, match=sentence):
        build(specs)


def test_checking_a_recipe_does_not_import_the_users_module() -> None:
    """The flow process checks recipes; a user's module may take seconds and gigabytes to import."""
    sys.modules.pop("reward_samples", None)
    check_functions([("reward_samples:length", 1, {}), ("gsm8k", 1, {"mode": "numeric"})])
    assert "reward_samples" not in sys.modules


def test_checking_a_recipe_does_not_import_a_built_ins_library() -> None:
    """sympy takes a second and tens of megabytes in every process that checks a recipe."""
    checked = (
        "import sys; from rlcore.rewards.registry import check_functions;"
        " check_functions([('math', 1.0, {}), ('length', 1.0, {'soft': 1, 'hard': 2})]);"
        " sys.exit('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", checked], cwd=ROOT, timeout=300).returncode == 0


def test_parts_are_summed_by_weight_and_kept() -> None:
    specs: list[Spec] = [
        ("reward_samples:length", 0.5, {}),
        ("gsm8k", 2.0, {}),
        ("reward_samples:rich", -1.0, {"bonus": 0.25}),
    ]
    reward = build(specs)(row("#### 72"))
    assert reward.score == pytest.approx(0.5 * 2.07 + 2.0 * 1.0 - 0.25)
    assert reward.parts == pytest.approx(
        {
            "reward_samples:length": 2.07,
            "gsm8k": 1.0,
            "reward_samples:rich": 0.25,
            "reward_samples:rich/length": 7.0,
        }
    )
    assert (reward.outcome, reward.correct, reward.answer) == ("ok", True, "72")


def test_one_part_that_fails_leaves_no_score() -> None:
    reward = build([("gsm8k", 1, {}), ("reward_samples:by_command", 1, {})])(row("none"))
    assert (reward.outcome, reward.score, reward.correct) == ("error", None, None)
    assert reward.detail == "reward_samples:by_command: the reward function returned None"


@pytest.mark.parametrize(
    ("name", "score", "correct"),
    [
        ("length", 2.02, None),
        ("slow_length", 2.0, None),
        ("rich", 1.0, True),
        ("plain_rich", 1.0, None),
    ],
)
def test_both_signatures_work_plain_and_async(
    name: str, score: float, correct: bool | None
) -> None:
    scorer = build([(f"reward_samples:{name}", 1.0, {})])
    for _ in range(3):
        reward = scorer(row("72"))
        assert reward.score == pytest.approx(score)
        assert reward.correct is correct


@pytest.mark.parametrize("command", ["nan", "text"])
def test_a_result_that_is_no_finite_number_is_an_error(command: str) -> None:
    with pytest.raises(UserError, match="which is not a finite number"):
        build([("reward_samples:by_command", 1, {})])(row(command))


def test_a_function_of_the_prompt_needs_one() -> None:
    """Scoring an absent prompt as an empty one would be a silent fault."""
    with pytest.raises(UserError, match="the row has no prompt text"):
        build([("reward_samples:length", 1, {})])(row("72", prompt=None))


def test_weight_zero_judges_without_counting() -> None:
    """RLHF must report true accuracy next to the reward model's score without training on it."""
    judge = Reward("t", "wrong", 0.0, correct=False)
    taught = Reward("t", "ok", 0.7)
    both = combine(row("x", truth="1"), [("true", 0.0, judge), ("proxy", 2.0, taught)])
    assert (both.score, both.correct, both.outcome) == (1.4, False, "wrong")
    assert not both.counts, "a verdict of weight 0 must not choose a checkpoint"
    unjudged = combine(
        row("x", truth="1"), [("true", 0.0, Reward("t", "error", None)), ("p", 1, taught)]
    )
    assert (unjudged.score, unjudged.correct, unjudged.outcome) == (0.7, None, "ok")


def test_the_verdict_is_that_of_a_function_that_counts_wherever_it_stands() -> None:
    watching = ("watching", 0.0, Reward("t", "wrong", 0.0, correct=False, answer="b"))
    counting = ("counting", 1.0, Reward("t", "ok", 1.0, correct=True, answer="a"))
    for order in ([watching, counting], [counting, watching]):
        reward = combine(row("x"), order)
        assert (reward.correct, reward.outcome, reward.answer) == (True, "ok", "a")
        assert reward.counts
    silent = combine(row("x"), [watching, ("score", 1.0, Reward("t", "ok", 0.5))])
    assert (silent.correct, silent.counts) == (False, False)


def test_a_function_of_weight_zero_that_fails_costs_no_score() -> None:
    specs: list[Spec] = [
        ("reward_samples:by_command", 0.0, {}),
        ("reward_samples:plain_rich", 1.0, {}),
    ]
    reward = build(specs)(row("none", truth="none"))
    assert (reward.outcome, reward.score, reward.correct) == ("ok", 1.0, None)
    assert reward.failures == {
        "reward_samples:by_command": Failure("error", "the reward function returned None")
    }
    assert reward.parts == {"reward_samples:plain_rich": 1.0}


def test_a_reward_function_may_say_why() -> None:
    reward = reward_of(row("x"), {"score": 0.0, "acc": False, "detail": "too long"})
    assert (reward.outcome, reward.detail, reward.parts) == ("wrong", "too long", {})
