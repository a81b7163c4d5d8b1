"""A row is judged against the samples of its own prompt, in whatever order they come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.algorithms.grouping import group_statistics

NAN = float("nan")


def test_groups_by_hand() -> None:
    groups = group_statistics(np.array([1.0, 5.0, 0.0, NAN, 5.0]), np.array(["b", "a"] * 2 + ["a"]))
    assert groups.centred_R.tolist() == [0.5, 0.0, -0.5, 0.0, 0.0]
    assert groups.count_G.tolist() == [2, 2]  # of a and b: one row of a has no score
    assert groups.std_G.tolist() == pytest.approx([0.0, 0.5**0.5])
    assert groups.constant_G.tolist() == [True, False]
    assert groups.learns_R.tolist() == [True, False, True, False, False]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.25, 1.0, NAN])),
        min_size=1,
        max_size=12,
    ),
    st.randoms(),
)
def test_the_order_of_rows_changes_nothing(rows: list[tuple[int, float]], random) -> None:
    """Batches are reordered between rollout and update."""
    order = list(range(len(rows)))
    random.shuffle(order)
    ids, scores = (np.array(column) for column in zip(*rows, strict=True))
    here, there = group_statistics(scores, ids), group_statistics(scores[order], ids[order])
    np.testing.assert_allclose(there.centred_R, here.centred_R[order], atol=1e-12)
    assert there.learns_R.tolist() == here.learns_R[order].tolist()


def test_a_constant_group_is_centred_to_exactly_zero() -> None:
    """.7 has no exact binary form: eight of them less their mean is rounding, scaled up by std."""
    groups = group_statistics(np.full(8, 0.7, dtype=np.float32), np.zeros(8))
    assert not groups.centred_R.any()
    assert groups.constant_G.tolist() == [True]


def test_scores_apart_by_more_than_the_tolerance_teach() -> None:
    apart = np.array([0.0, 1e-3])
    assert group_statistics(apart, np.zeros(2)).learns_R.all()
    assert not group_statistics(apart, np.zeros(2), tolerance=1e-2).learns_R.any()


def test_a_penalty_that_no_two_answers_share_is_no_verdict_on_them() -> None:
    """With the KL in the reward every score differs; the group is solved all the same."""
    scores, task_scores = np.array([0.9, 0.8, 0.7]), np.ones(3)
    groups = group_statistics(scores, np.zeros(3), task_scores=task_scores)
    assert groups.constant_G.tolist() == [True]
    assert not groups.learns_R.any()
    assert groups.centred_R.tolist() == pytest.approx([0.1, 0.0, -0.1])


@pytest.mark.parametrize("scores", [[], [1.0], [NAN], [NAN, NAN], [1.0, NAN]])
def test_groups_without_a_second_score_have_no_baseline(scores: list[float]) -> None:
    groups = group_statistics(np.array(scores), np.zeros(len(scores)))
    assert not groups.learns_R.any()
    assert not groups.centred_R.any()
    assert not groups.constant_G.any(), "one answer does not make a prompt solved"
