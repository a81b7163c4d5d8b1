import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.algorithms.advantages import estimator, group_advantages
from schemas.errors import UserError


def test_hand_computed_groups():
    """SPEC A5: unbiased std."""
    scores = np.array([1.0, 1, 0, 0, 0, 1, 0, 0])
    groups = np.array(["a", "b", "a", "a", "a", "b", "b", "b"])
    values = group_advantages(scores, groups).values
    np.testing.assert_allclose(values[[0, 2, 3, 4]], [1.5, -0.5, -0.5, -0.5], atol=1e-5)
    np.testing.assert_allclose(values[[1, 5, 6, 7]], [0.8660, 0.8660, -0.8660, -0.8660], atol=1e-4)


def test_without_std_is_dr_grpo():
    values = group_advantages(np.array([1.0, 0, 0, 0]), np.zeros(4), norm_by_std=False).values
    np.testing.assert_allclose(values, [0.75, -0.25, -0.25, -0.25], atol=1e-12)


@pytest.mark.parametrize("score", [0.7, 0.1, 1e6, -3.3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_scores_teach_exactly_nothing(score, dtype):
    """Rounding must not turn a constant group into a gradient."""
    found = group_advantages(np.full(8, score, dtype=dtype), np.zeros(8))
    assert (found.values == 0.0).all()
    assert (found.num_constant_groups, found.constant_fraction) == (1, 1.0)


def test_unscorable_rows_are_outside_the_baseline():
    """A timeout is not a wrong answer: it must not lower the mean of its group."""
    with_hole = group_advantages(np.array([1.0, None, 0, 0, 0], dtype=object), np.zeros(5))
    np.testing.assert_allclose(with_hole.values, [1.5, 0, -0.5, -0.5, -0.5], atol=1e-5)
    assert with_hole.num_unscorable == 1


def test_group_of_one_has_no_advantage():
    found = group_advantages(np.array([1.0, np.nan, 5.0]), np.array([0, 0, 1]))
    assert found.values.tolist() == [0.0, 0.0, 0.0]
    assert (found.num_singletons, found.num_groups) == (2, 2)


@given(
    st.lists(st.tuples(st.floats(-100, 100, width=32), st.integers(0, 5)), min_size=1, max_size=60)
)
def test_advantages_of_a_group_sum_to_zero_in_any_order(rows):
    scores = np.array([score for score, _ in rows])
    groups = np.array([group for _, group in rows])
    values = group_advantages(scores, groups).values
    for group in set(groups.tolist()):
        assert abs(values[groups == group].sum()) < 1e-6
    order = np.random.default_rng(0).permutation(len(rows))
    np.testing.assert_allclose(
        group_advantages(scores[order], groups[order]).values, values[order], atol=1e-9
    )


def test_bad_input_is_told():
    with pytest.raises(UserError, match="did you mean 'grpo'"):
        estimator("gpro")
    with pytest.raises(UserError, match=r"scores\[1\] = inf"):
        group_advantages(np.array([0.0, np.inf]), np.zeros(2))
    with pytest.raises(UserError, match="one of each per row"):
        group_advantages(np.zeros(3), np.zeros(2))
