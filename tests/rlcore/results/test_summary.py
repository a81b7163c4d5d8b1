"""What is printed at the end of a run follows from its tables, also where some are lost."""

import polars as pl
import pytest

from rlcore.results.metrics import metrics_frame
from rlcore.results.summary import (
    accuracies,
    lost_time,
    peak_memory_gib,
    phase_seconds,
    proxy_and_truth,
    token_rates,
    worst_gap,
)


def metrics(**curves: list[float]) -> pl.DataFrame:
    """Rows of steps 0, 1, ...; ``__`` in a name stands for a slash."""
    length = max(len(curve) for curve in curves.values())
    frames = [
        metrics_frame(
            "rl",
            step,
            {n.replace("__", "/"): c[step] for n, c in curves.items() if step < len(c)},
        )
        for step in range(length)
    ]
    return pl.concat(frames)


def results(*rows: tuple[str, str, str, float, int]) -> pl.DataFrame:
    schema = ["checkpoint", "subset", "metric", "value", "num_prompts"]
    return pl.DataFrame(rows, schema=schema, orient="row")


def test_accuracy_weighs_prompts_alike_over_held_out_sources_alone() -> None:
    """A small source must not count as much as a large one, and held-out steps are another task."""
    found = accuracies(
        results(
            ("rl", "test", "greedy/acc", 1.0, 100),
            ("rl", "test", "greedy/acc", 0.0, 300),
            ("rl", "test_steps", "greedy/acc", 1.0, 900),
            ("rl", "all", "greedy/acc", 0.7, 1300),
            ("rl", "test", "sampled/avg@4", 0.5, 100),
            ("sft", "test", "greedy/acc", 0.5, 400),
        )
    )
    assert found == {"base": None, "sft": 0.5, "rl": 0.25}


def test_the_metric_is_found_by_how_its_name_begins() -> None:
    frame = results(("rl", "test", "sampled/avg@4", 0.5, 10), ("rl", "test", "greedy/acc", 1.0, 10))
    assert accuracies(frame, "sampled/avg@")["rl"] == 0.5


def test_rates_are_tokens_over_seconds_without_the_start() -> None:
    rl = metrics(
        perf__response_tokens=[0.0, 100.0, 300.0],
        timing_s__gen=[1000.0, 1.0, 3.0],
        perf__total_num_tokens=[0.0, 1000.0, 3000.0],
        timing_s__step=[1000.0, 10.0, 30.0],
    )
    assert token_rates(None, rl) == {"rollout": 100.0, "iteration": 100.0}


def test_an_iteration_that_lost_one_of_two_figures_counts_in_neither() -> None:
    """Tokens without their seconds would make the machine look faster than it is."""
    rl = metrics(perf__response_tokens=[0.0, 100.0, 900.0], timing_s__gen=[0.0, 1.0])
    assert token_rates(None, rl)["rollout"] == 100.0


def test_lost_figures_have_no_rate() -> None:
    assert token_rates(metrics(loss=[1.0]), metrics(loss=[1.0, 1.0])) == {}


def test_the_rate_of_sft_is_its_last() -> None:
    sft = metrics(perf__total_tokens_per_s=[10.0, 30.0], perf__throughput=[1.0, 3.0]).reverse()
    assert token_rates(sft, metrics(loss=[1.0]))["sft"] == 30.0


def test_seconds_of_a_phase_are_the_median_iterations() -> None:
    """One iteration that compiled or swapped is not what the next run will take."""
    rl = metrics(timing_s__gen=[500.0, 1.0, 2.0, 90.0], timing_s__step=[0.0, 5.0, 5.0, 5.0])
    assert phase_seconds(rl) == {"gen": 2.0, "step": 5.0}


def test_a_gap_between_proxy_and_truth_is_scaled_by_the_runs_own_range() -> None:
    rl = metrics(critic__score__mean=[-1.0, 0.0, 1.0, 3.0], critic__accuracy=[0.5, 0.7, 0.9, 0.6])
    curves = proxy_and_truth(rl)
    assert curves is not None
    assert curves["gap"].to_list() == pytest.approx([0.0, -0.25, -0.5, 0.75])


def test_a_flat_curve_has_no_range_and_leaves_the_gap_defined() -> None:
    curves = proxy_and_truth(metrics(critic__score__mean=[1.0, 1.0], critic__accuracy=[0.0, 1.0]))
    assert curves is not None
    assert curves["gap"].to_list() == [0.0, -1.0]


def test_without_verdicts_there_is_no_gap() -> None:
    assert proxy_and_truth(metrics(critic__score__mean=[1.0, 2.0])) is None


def test_the_worst_gap_of_any_iteration_is_told() -> None:
    assert worst_gap(metrics(training__rollout_logprobs_gap_max=[0.1, 0.5, 0.2])) == 0.5
    assert worst_gap(metrics(loss=[1.0])) is None


def test_the_productive_share_counts_engines_and_restarts() -> None:
    """Of 40 s of iterations 4 were lost; two restarts cost 10 s more, which are in none."""
    rl = metrics(
        timing_s__step=[99.0, 10.0, 10.0, 20.0],
        timing_s__engines_replaced=[0.0, 0.0, 4.0],
        rollout__engines_replaced=[0.0, 0.0, 2.0],
    )
    assert lost_time(rl, [3.0, 7.0]) == {
        "engines_replaced": 2.0,
        "engines_replaced_s": 4.0,
        "restarts": 2.0,
        "restarts_s": 10.0,
        "productive_share": pytest.approx(36 / 50),
    }


def test_the_most_memory_of_any_iteration_is_told_by_role() -> None:
    rl = metrics(
        perf__memory_gib__actor=[1.0, 3.0, 2.0], perf__memory_gib__critic=[0.5], loss=[9.0]
    )
    assert peak_memory_gib(rl) == {"actor": 3.0, "critic": 0.5}
    assert peak_memory_gib(metrics(loss=[1.0])) == {}


def test_a_run_that_lost_nothing_has_no_lost_time() -> None:
    assert lost_time(metrics(timing_s__step=[0.0, 10.0]), []) is None
    assert lost_time(metrics(loss=[1.0]), []) is None
