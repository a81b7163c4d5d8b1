"""Per-function reward metrics: which term of a weighted sum the policy is learning."""

import polars as pl

from rlcore.rewards.unscored_rows import part_metrics


def test_each_function_has_its_mean_over_the_rows_that_have_it() -> None:
    parts = ['{"gsm8k": 1.0, "m:length": 0.5}', '{"gsm8k": 0.0, "m:length": 0.1}', '{"gsm8k": 1}']
    found = part_metrics(pl.DataFrame({"parts": parts}))
    assert found == {"reward/gsm8k/mean": 2 / 3, "reward/m:length/mean": 0.3}


def test_a_single_function_adds_no_metric() -> None:
    assert part_metrics(pl.DataFrame({"parts": ['{"gsm8k": 1.0}', "{}"]})) == {}
    assert part_metrics(pl.DataFrame({"parts": []}, schema={"parts": pl.String})) == {}
