"""The comparison of DPO and KTO with TRL's: its arithmetic, and the rows both sides read."""

import numpy as np

from tests.bench.peers.processes import Timed
from tests.bench.preference import CURVES, OURS, THEIRS, _single, figures, table_of

PAIRS = [
    {"prompt_ids": [5, 6, row], "chosen_ids": [7, row, 1], "rejected_ids": [8, row, 1]}
    for row in range(9, 12)
]


def timed(seconds: list[float], value: float) -> Timed:
    return Timed([{**dict.fromkeys(CURVES, value), "seconds": s} for s in seconds], 2**30)


def test_curves_are_compared_step_by_step_and_speed_behind_the_warmup() -> None:
    sides = {OURS: timed([9, 9, 1, 2, 1], 0.5), THEIRS: timed([90, 90, 2, 2, 2], 0.515)}
    found = {measure.name: measure for measure in figures("dpo", sides)}
    assert found["dpo: loss, largest gap"].value == 0.015
    assert not found["dpo: loss, largest gap"].met
    assert found["dpo: our steps/s over TRL's"].value == 2.0
    assert found["dpo: TRL, peak memory, GiB"].value == 1.0


def test_single_responses_come_with_the_one_to_another_prompt() -> None:
    rows = _single(PAIRS)
    assert [row["label"] for row in rows] == [True, False] * 3
    for place, row in enumerate(rows):
        own = PAIRS[place // 2]
        assert row["KL_completion_ids"] not in (own["chosen_ids"], own["rejected_ids"])
    table = table_of(rows)
    assert table["rank"].to_list() == [1, 2] * 3
    assert np.array_equal(table["token_ids"][0].to_numpy(), [5, 6, 9, 7, 9, 1])


def test_the_two_responses_of_a_pair_share_their_prompt() -> None:
    table = table_of(PAIRS)
    assert table["uid"].to_list() == ["000000"] * 2 + ["000001"] * 2 + ["000002"] * 2
    assert table["prompt_tokens"].to_list() == [3] * 6
