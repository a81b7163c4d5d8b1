"""Responses of the policy become rankings of it."""

from collections import Counter
from functools import partial
from typing import Any

import polars as pl
import pytest

from rlcore.engines.types import Generation, Sampling
from rlcore.rewards.types import Failure, Reward, RewardRow
from rlcore.supervised.preferences import num_responses, sample_preferences
from rlcore.supervised.ranking import by_verdict
from schemas.errors import UserError
from schemas.outcomes import FinishReason
from schemas.reward_model import SampledPreferences
from schemas.rl import RewardFunction, RewardSection
from schemas.tables import PREFERENCES
from tests.rlcore.rollout.scripted import STAMP, ScriptedEngines, ScriptedTokenizer

REWARD = RewardSection(functions=(RewardFunction(name="gsm8k"),))


SECTION = SampledPreferences(prompts=30, validation_prompts=10, max_new_tokens=8)


EOS = 9


OUTCOMES = {1: ("ok", True), 2: ("wrong", False), 3: ("no_answer", False), 4: ("timeout", None)}


def prompts(num_train: int = 40, num_validation: int = 12) -> pl.DataFrame:
    splits = ["train"] * num_train + ["validation"] * num_validation
    return pl.DataFrame(
        [
            {
                "uid": f"p{number}",
                "split": split,
                "data_source": "sums",
                "prompt": [{"role": "user", "content": "?"}],
                "prompt_ids": [7, 8],
                "ground_truth": "1",
                "reward_style": "rule",
                "extra_info": "{}",
            }
            for number, split in enumerate(splits)
        ],
        schema_overrides={"prompt_ids": pl.List(pl.Int32)},
    )


def generate(ids: list[list[int]], seeds: list[int], sampling: Sampling) -> list[Generation]:
    """The seed decides the response: 1 right, 2 wrong, 3 malformed."""
    assert sampling.max_new_tokens == 8
    assert all(prompt == [7, 8] for prompt in ids)
    return [Generation([1 + seed % 3, EOS], [0.0, 0.0], FinishReason.STOP, STAMP) for seed in seeds]


def score(rows: list[RewardRow]) -> list[Reward]:
    rewards = []
    for row in rows:
        outcome, correct = OUTCOMES[int(row.response)]
        value = None if outcome == "timeout" else float(correct or 0)
        rewards.append(Reward(row.trajectory_id, outcome, value, correct=correct, detail="slow"))
    return rewards


def decode(token_ids: list[int]) -> str:
    return str(token_ids[0])


def sample(**changes: Any) -> Any:
    scorer, reward = changes.pop("score", score), changes.pop("reward", REWARD)
    arguments: dict[str, Any] = {
        "seed": 0,
        "engines": ScriptedEngines(changes.pop("generate", generate)),
        "tokenizer": ScriptedTokenizer(decode),
        "stop_ids": (EOS,),
        "rank": partial(by_verdict, scorer=scorer, section=reward),
    }
    return sample_preferences(SECTION, prompts(), **(arguments | changes))


def test_every_prompt_gets_4_to_9_responses_and_the_same_again() -> None:
    """K = 4..9 as in InstructGPT. A rerun that drew another K would train on other data under one
    key."""
    table = PREFERENCES.validate(sample().table)
    sizes = table.group_by("uid").len()["len"].to_list()
    assert len(sizes) == 40
    assert set(sizes) <= set(range(4, 10))
    assert len(set(sizes)) == 6, "all six sizes occur among forty prompts"
    assert table.equals(sample().table)
    assert not table.equals(sample(seed=1).table)
    draws = Counter(num_responses(SECTION, f"u{n}", 0) for n in range(6000))
    assert all(900 < draws[k] < 1100 for k in range(4, 10)), draws


def test_the_verifier_ranks_correct_before_wrong_before_malformed() -> None:
    table = sample().table
    found = set(table.select("response", "level", "rank").rows())
    assert found == {("1", "correct", 1), ("2", "wrong", 2), ("3", "malformed", 3)}
    assert set(table["token_ids"].list.len()) == {4}
    assert set(table["prompt_tokens"]) == {2}
    splits = dict(table.group_by("split").agg(pl.col("uid").n_unique()).iter_rows())
    assert splits == {"train": 30, "validation": 10}


def test_what_cannot_be_ranked_is_left_out_and_counted() -> None:
    def some_fail(ids: list, seeds: list[int], sampling: Sampling) -> list[Generation]:
        made = generate(ids, seeds, sampling)
        made[0] = Generation([4, EOS], [0.0, 0.0], FinishReason.STOP, STAMP)  # its score times out
        made[1] = Generation([2], [0.0], FinishReason.ABORT, STAMP)
        return made

    found, whole = sample(generate=some_fail), sample()
    assert found.left_out == {"unscorable": 1, "aborted": 1}
    assert found.table.height == whole.table.height - 2
    for bound in ("max_error_fraction", "max_timeout_fraction"):
        strict = REWARD.model_copy(update={bound: 0.0})
        with pytest.raises(UserError, match=rf"sampled responses .* above reward\.{bound} = 0"):
            sample(generate=some_fail, reward=strict)


def test_a_judge_of_weight_zero_that_fails_leaves_a_response_unscorable() -> None:
    """Its verdict is what ranks, so its failure is no missing judge."""

    def fails_once(rows: list[RewardRow]) -> list[Reward]:
        first, *rest = score(rows)
        failures = {"judge": Failure("error", "no service")}
        return [Reward(first.trajectory_id, "ok", 0.0, failures=failures), *rest]

    assert sample(score=fails_once).left_out == {"unscorable": 1}
    strict = REWARD.model_copy(update={"max_error_fraction": 0.0})
    with pytest.raises(UserError, match="is error: no service"):
        sample(score=fails_once, reward=strict)


def test_rewards_that_judge_nothing_cannot_rank() -> None:
    def plain(rows: list[RewardRow]) -> list[Reward]:
        return [Reward(row.trajectory_id, "ok", 0.5) for row in rows]

    with pytest.raises(UserError, match="do not judge the correctness"):
        sample(score=plain)
