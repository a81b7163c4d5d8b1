"""Generated problems carry what their reward and their splits need."""

import json

from rlcore.data.generators import generated_rows
from rlcore.rewards import arithmetic
from rlcore.rewards.types import RewardRow
from schemas.data import ArithmeticSource

SOURCE = ArithmeticSource(train=20, validation=8, test=8, test_steps=8, demonstrations=60)


def test_each_split_has_its_rows_and_the_harder_test_is_a_subset() -> None:
    rows = list(generated_rows(SOURCE, seed=0))
    prompts = [(row.split, row.subset) for row in rows if row.scored]
    assert {pair: prompts.count(pair) for pair in prompts} == {
        ("train", "train"): 20,
        ("validation", "validation"): 8,
        ("test", "test"): 8,
        ("test", "test_steps"): 8,
    }
    assert [row.index for row in rows] == list(range(len(rows)))


def test_a_demonstration_is_learnt_from_and_never_scored() -> None:
    demonstrations = [row for row in generated_rows(SOURCE, seed=0) if row.solution]
    assert sum(row.split == "train" for row in demonstrations) == 60
    assert {row.split for row in demonstrations} == {"train", "validation"}
    assert not any(row.scored for row in demonstrations)


def test_the_reward_takes_the_ground_truth_for_right() -> None:
    """Written otherwise than the reward reads it, no answer would ever earn anything."""
    score = arithmetic.scorer()
    for row in generated_rows(SOURCE, seed=0):
        response = f"#### {row.ground_truth}"
        reward = score(RewardRow("t", row.data_source, response, row.ground_truth, {}, "stop", 5))
        assert reward.correct, row
        assert json.loads(row.extra_info)["numbers"]
