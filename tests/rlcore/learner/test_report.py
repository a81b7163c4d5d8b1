"""A step's metrics do not depend on how many ranks or steps they were put together from."""

import pytest

from rlcore.learner.report import StepReport, over_ranks, over_steps


def test_ranks_add_their_shares_of_a_mean_and_keep_the_largest_maximum() -> None:
    """Means are normalised over all ranks before: averaged again, two ranks would report half."""
    found = over_ranks(
        [
            StepReport({"loss": 0.25}, {"ratio_max": 1.5}, {"tokens": 10}),
            StepReport({"loss": 0.5}, {"ratio_max": 1.25}, {"tokens": 30}),
        ]
    )
    assert found.flat() == {"loss": 0.75, "ratio_max": 1.5, "tokens": 40.0}


def test_steps_average_their_means_and_add_their_counts() -> None:
    found = over_steps(
        [
            StepReport({"loss": 1.0}, {"ratio_max": 1.5}, {"skipped": 0}),
            StepReport({"loss": 2.0}, {"ratio_max": 1.25}, {"skipped": 1}),
        ]
    )
    assert found.flat() == {"loss": 1.5, "ratio_max": 1.5, "skipped": 1.0}


def test_a_metric_of_some_steps_is_averaged_over_those() -> None:
    """A term that only every other step has is not half as large for that."""
    found = over_steps([StepReport({"loss": 1.0, "ptx": 4.0}), StepReport({"loss": 3.0})])
    assert found.means == {"loss": 2.0, "ptx": 4.0}


@pytest.mark.parametrize("combine", [over_ranks, over_steps])
def test_nothing_to_report_is_an_empty_report(combine) -> None:
    assert combine([]).flat() == {}
