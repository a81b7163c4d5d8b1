"""An update that changes nothing ends the run, and the remedy depends on its cause."""

from collections.abc import Callable
from typing import Any

import pytest

from rlcore.diagnostics.watch import DiagnosticError
from tests.rlcore.diagnostics.streams import Metrics, broken, fixed, recipe, watch


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("reward_dead", fixed(critic__score__max=-1.0, critic__score__min=-1.0)),
        ("dead_updates", fixed(actor__zero_gradient_steps=2.0)),
        ("dead_updates", fixed(actor__optimizer_steps=0.0)),
        # a partial batch has fewer steps than the recipe plans
        ("dead_updates", fixed(actor__optimizer_steps=1.0, actor__zero_gradient_steps=1.0)),
    ],
)
def test_nothing_to_learn_from_ends_the_run(
    check: str, change: Callable[[int, Metrics], Metrics]
) -> None:
    """Rewards that died look like training: same loss, same clock, no learning."""
    with pytest.raises(
        DiagnosticError, match=rf"\({check}, 20 iterations in a row up to it.* 29\)"
    ):
        watch(recipe(), broken(change, start=10, end=60))
    watch(recipe(), broken(change, start=10, end=29))


@pytest.mark.parametrize(
    ("overrides", "change", "cause", "remedy"),
    [
        (
            {"rl__algorithm__mask_truncated": True},
            fixed(actor__optimizer_steps=0.0, response_length__clip_ratio=1.0),
            "no optimizer step, as no response holds a token to learn from: 100% were cut off",
            "raise rl.rollout.max_new_tokens (now 40)",
        ),
        (
            {"rl__algorithm__mask_truncated": True},
            fixed(
                actor__optimizer_steps=0.0,
                response_length__clip_ratio=0.1,
                response__aborted_ratio=0.9,
            ),
            "10% were cut off .* 90% were aborted by the engine",
            "raise hardware.rollout.kv_cache_gib",
        ),
        (
            {"rl__algorithm__mask_truncated": True},
            fixed(actor__zero_gradient_steps=2.0, response_length__clip_ratio=0.9),
            "2 of its optimizer steps had a zero gradient",
            "raise rl.rollout.max_new_tokens (now 40)",
        ),
        (
            {},
            fixed(actor__skipped_steps=2.0, actor__grad_norm=float("nan")),
            "2 were not finite",
            "lower rl.update.optimizer.lr",
        ),
        ({}, fixed(actor__zero_gradient_steps=2.0), "a zero gradient", "scores are equal within"),
    ],
)
def test_the_remedy_of_a_dead_update_goes_by_its_cause(
    overrides: dict[str, Any], change: Callable[[int, Metrics], Metrics], cause: str, remedy: str
) -> None:
    with pytest.raises(DiagnosticError, match=cause) as ended:
        watch(recipe(**overrides), broken(change, start=10, end=60))
    assert f": {remedy}" in str(ended.value)
    assert "mask_truncated" not in str(ended.value), "it is on already, or would not help"


NAN = float("nan")
NOT_FINITE = {"actor__skipped_steps": 2.0, "actor__grad_norm": NAN}


@pytest.mark.parametrize(
    ("loss", "dtype", "pg_loss", "remedy"),
    [
        ("my.losses:f", "float32", NAN, "correct rl.algorithm.policy_loss = 'my.losses:f', which"
                                        " returned values that are not finite"),
        ("my.losses:f", "float32", 0.1, "lower rl.update.optimizer.lr or rl.update.optimizer."
         "grad_clip, or correct rl.algorithm.policy_loss = 'my.losses:f', whose gradient may not"
         " be"),
        ("clip", "float32", NAN, "lower rl.update.optimizer.lr or rl.update.optimizer.grad_clip"),
        ("clip", "bfloat16", NAN, "lower rl.update.optimizer.lr or rl.update.optimizer.grad_clip,"
                                  " or use model.dtype: float32"),
    ],
)  # fmt: skip
def test_three_updates_that_are_not_finite_end_the_run(
    loss: str, dtype: str, pg_loss: float, remedy: str
) -> None:
    """It ended after twenty, and advised float32 where the run had it."""
    config = recipe(rl__algorithm__policy_loss=loss, model__dtype=dtype)
    change = fixed(**NOT_FINITE, actor__pg_loss=pg_loss)
    with pytest.raises(DiagnosticError, match=r"\(never_finite, 3 .*up to iteration 12\)") as ended:
        watch(config, broken(change, start=10, end=60))
    assert str(ended.value).endswith(f": {remedy}")
    _, findings = watch(config, broken(change, start=10, end=12))
    assert {found.severity for found in findings} == {"warning"}
    assert {found.remedy for found in findings} == {remedy}, "from the first update on"


def test_one_finite_step_among_others_goes_on() -> None:
    change = fixed(actor__skipped_steps=1.0, actor__grad_norm=NAN, actor__pg_loss=NAN)
    watch(recipe(), broken(change, start=10, end=60))


def test_the_critics_remedy_goes_by_its_cause() -> None:
    unscored = broken(fixed(critic__optimizer_steps=0.0), start=10, end=60)
    with pytest.raises(DiagnosticError, match=r"no response has a score .*table rewards"):
        watch(recipe("quickstart-ppo"), unscored)
    broken_off = fixed(critic__skipped_steps=2.0, critic__grad_norm=float("nan"))
    with pytest.raises(DiagnosticError, match=r"2 were not finite .*lower rl.critic.optimizer.lr"):
        watch(recipe("quickstart-ppo"), broken(broken_off, start=10, end=60))


@pytest.mark.parametrize(
    ("overrides", "cut_off", "remedy"),
    [
        ({}, 0.4, "raise rl.rollout.max_new_tokens, or set rl.algorithm.overlong (soft punishment)"
                  " or rl.algorithm.mask_truncated"),
        ({"rl__algorithm__mask_truncated": True}, 0.4, "raise rl.rollout.max_new_tokens, or set"
                                                       " rl.algorithm.overlong (soft punishment)"),
        ({"rl__algorithm__mask_truncated": True, "rl__algorithm__overlong": {}}, 0.4,
         "raise rl.rollout.max_new_tokens"),
    ],
)  # fmt: skip
def test_a_remedy_names_what_is_not_on_yet(
    overrides: dict[str, Any], cut_off: float, remedy: str
) -> None:
    stream = broken(fixed(response_length__clip_ratio=cut_off), start=10, end=29)
    _, (found,) = watch(recipe(**overrides), stream)
    assert (found.check, found.remedy) == ("truncation", remedy)


def test_responses_that_nothing_ends_are_told_what_could_end_them() -> None:
    """Where every response is cut off, masking would leave none, and shaping treats all alike."""
    stream = broken(fixed(response_length__clip_ratio=1.0), start=10, end=29)
    _, (found,) = watch(recipe(), stream)
    assert found.check == "answers_never_end"
    assert all(word in found.remedy for word in ("model.stop_tokens", "rl.rollout.stop"))
    assert not any(word in found.remedy for word in ("mask_truncated", "overlong"))
