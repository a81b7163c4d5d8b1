"""A config becomes the recipe that it names, for the prompts and the model there are."""

import re

import pytest

from rlcore.api.configs import DAPOConfig, GRPOConfig, TrainingConfig
from rlcore.api.recipe import batch_of
from schemas.errors import UserError
from tests.rlcore.api.tiny import recipe


def test_overlong_lengths_keep_their_proportion_where_the_context_is_short() -> None:
    """The default 20480 and 4096 on a model of 1,100 tokens: punishment begins at four fifths."""
    rl = recipe(DAPOConfig(), context=1100).rl
    assert rl.rollout.max_new_tokens == 1000
    assert rl.algorithm.overlong is not None
    assert (rl.algorithm.overlong.max_tokens, rl.algorithm.overlong.cache_tokens) == (1000, 200)
    capped = recipe(DAPOConfig(max_completion_length=500)).rl
    assert capped.algorithm.overlong is not None
    assert (capped.algorithm.overlong.max_tokens, capped.algorithm.overlong.cache_tokens) == (
        500,
        100,
    )


@pytest.mark.parametrize(
    ("config", "num_prompts", "batch"),
    [
        (DAPOConfig(), 2, (2, 2)),
        (DAPOConfig(), 100, (100, 10)),
        (DAPOConfig(), 5000, (512, 16)),
        (DAPOConfig(num_gradient_updates=16), 100, (96, 16)),
        (GRPOConfig(), 1, (1, 1)),
        (GRPOConfig(num_prompts_per_batch=9, num_gradient_updates=3), 10, (9, 3)),
    ],
)
def test_batches_shrink_to_the_prompts_there_are(
    config: TrainingConfig, num_prompts: int, batch: tuple[int, int]
) -> None:
    assert batch_of(config, num_prompts) == batch


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (GRPOConfig(num_prompts_per_batch=11), "num_prompts_per_batch = 11 and train_prompts hold"),
        (
            GRPOConfig(num_prompts_per_batch=9, num_gradient_updates=2),
            "num_gradient_updates = 2 does not divide the 9 prompts",
        ),
        (GRPOConfig(num_gradient_updates=11), "num_gradient_updates = 11 does not divide"),
    ],
)
def test_batches_that_cannot_be_are_refused(config: TrainingConfig, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        batch_of(config, 10)


def test_lengths_that_cannot_be_are_refused() -> None:
    for config in (GRPOConfig(max_completion_length=101), DAPOConfig(max_generation_length=101)):
        with pytest.raises(UserError, match=re.escape("= 101 and the model's context leaves 100")):
            recipe(config, context=200)
    with pytest.raises(UserError, match="the model's context holds 100"):
        recipe(GRPOConfig(), context=100)
    assert recipe(GRPOConfig(), context=200).rl.rollout.max_new_tokens == 100
    assert recipe(GRPOConfig(), context=None).rl.rollout.max_new_tokens == 512
