"""Estimators over whole batches, against numbers worked out by hand."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.algorithms.advantages import ESTIMATORS, AdvantageInput, AdvantageResult, estimate
from schemas.errors import UserError

GROUP_ESTIMATORS = ("grpo", "rloo", "reinforce++-baseline")


def batch_of(scores, groups=None, masks=None, **fields) -> AdvantageInput:
    """One policy token per row and one group unless given otherwise."""
    scores = np.asarray(scores)
    groups = np.zeros(len(scores)) if groups is None else np.asarray(groups)
    masks = [[1]] * len(scores) if masks is None else masks
    return AdvantageInput(scores, groups, [np.array(mask, dtype=bool) for mask in masks], **fields)


def per_row(name: str, batch: AdvantageInput, **options) -> np.ndarray:
    """The advantage of each row's first policy token (0 for rows without)."""
    arrays = estimate(name, batch, **options).advantages
    return np.array(
        [
            array[mask][0] if mask.any() else 0.0
            for array, mask in zip(arrays, batch.masks, strict=True)
        ]
    )


def full_batch(scores, rng: np.random.Generator) -> AdvantageInput:
    """Everything any estimator reads, over masked rows of several lengths."""
    masks = [rng.random(rng.integers(3, 8)) < 0.7 for _ in scores]
    for mask in masks:
        mask[1] = True
    return batch_of(
        scores,
        np.arange(len(scores)) % 3,
        masks,
        token_kl=[0.01 * rng.random(len(mask)) for mask in masks],
        values=[rng.normal(size=len(mask)) for mask in masks],
        baselines=rng.random(len(scores)),
    )


def test_token_rewards_end_on_the_last_policy_token():
    """An answer that ends in tool tokens must not lose its reward."""
    batch = batch_of(
        [2.0, 1.0, np.nan],
        masks=[[1, 0, 1, 0], [0, 0], [1]],
        token_kl=[np.array([0.1, np.nan, 0.3, 1e9]), np.zeros(2), np.array([0.5])],
    )
    first, second, third = batch.rewards()
    np.testing.assert_allclose(first, [-0.1, 0, 1.7, 0], atol=1e-12)
    assert second.tolist() == [0.0, 0.0]
    assert np.isnan(third).all()
    np.testing.assert_allclose(batch.sequence_scores(), [1.6, np.nan, np.nan], atol=1e-12)


def test_grpo_by_hand():
    """Unbiased std, eps 1e-6, groups by id and not by position (arXiv 2402.03300 section 4.1.2)."""
    scores = [1.0, 1, 0, 0, 0, 1, 0, 0]
    values = per_row("grpo", batch_of(scores, ["a", "b", "a", "a", "a", "b", "b", "b"]))
    np.testing.assert_allclose(values[[0, 2, 3, 4]], [1.5, -0.5, -0.5, -0.5], atol=1e-5)
    np.testing.assert_allclose(values[[1, 5, 6, 7]], [0.8660, 0.8660, -0.8660, -0.8660], atol=1e-4)
    exact = 0.75 / (0.5 + 1e-6)
    assert per_row("grpo", batch_of([1.0, 0, 0, 0]))[0] == pytest.approx(exact, abs=1e-12)


def test_without_std_is_dr_grpo():
    values = per_row("grpo", batch_of([1.0, 0, 0, 0]), norm_by_std=False)
    np.testing.assert_allclose(values, [0.75, -0.25, -0.25, -0.25], atol=1e-12)


def test_rloo_by_hand():
    """The baseline is the mean of the others; the sum over the group is 0."""
    values = per_row("rloo", batch_of([1.0, 0, 0, 0]))
    np.testing.assert_allclose(values, [1, -1 / 3, -1 / 3, -1 / 3], atol=1e-12)
    mixed = np.array([0.3, -1.0, 2.0])
    others = [(mixed.sum() - score) / 2 for score in mixed]
    np.testing.assert_allclose(per_row("rloo", batch_of(mixed)), mixed - others, atol=1e-12)


def test_rloo_counts_trajectories_not_turns():
    """A trajectory of three turns is one sample of the baseline."""
    turns = batch_of([1.0, 0, 0], masks=[[1, 0, 1, 1, 0, 1], [1], [1, 1]])
    arrays = estimate("rloo", turns).advantages
    np.testing.assert_allclose(arrays[0], [1, 0, 1, 1, 0, 1], atol=1e-12)
    np.testing.assert_allclose(arrays[2], [-0.5, -0.5], atol=1e-12)


def test_kl_in_the_reward_is_part_of_the_group_score():
    """The score s_i holds -beta sum_t kl_t."""
    kl = [np.array([0.2, 9.0, 0.1]), np.zeros(1)]
    values = per_row("rloo", batch_of([1.0, 0.0], masks=[[1, 0, 1], [1]], token_kl=kl))
    np.testing.assert_allclose(values, [0.7, -0.7], atol=1e-12)


@pytest.mark.parametrize("name", ["grpo", "reinforce++-baseline"])
def test_the_coefficient_acts_in_a_solved_group(name):
    """Eight right answers differ by their KL alone; divided by its own spread, 1e-5 of it would
    weigh as much as right against wrong, and the coefficient not at all."""
    kl = np.array([0.5, 2.0, 1.0, 0.1, 3.0, 0.7, 0.2, 0.9])

    def advantages(coef, **options):
        given = batch_of(
            [*np.ones(8), 1.0, 0.0],
            [*np.zeros(8), 1, 1],
            token_kl=[np.array([coef * k]) for k in [*kl, 0.0, 0.0]],
        )
        found = estimate(name, given, **options)
        assert (found.num_groups, found.num_constant_groups) == (2, 1)
        return np.concatenate(found.advantages)

    weak, strong = advantages(1e-5), advantages(2e-5)
    np.testing.assert_allclose(weak[:8], 1e-5 * (kl.mean() - kl), rtol=1e-6)
    np.testing.assert_allclose(strong[:8], 2 * weak[:8], rtol=1e-6)
    assert weak[8] > 0.5, "in another group, right against wrong keeps its scale"
    np.testing.assert_allclose(weak[8:], strong[8:], atol=1e-4)


def test_a_solved_batch_without_kl_yet_teaches_exactly_nothing():
    """The first iteration: the reference is the policy, and what differs is rounding."""
    for name in (*GROUP_ESTIMATORS, "reinforce++"):
        kl = [np.array([value]) for value in (0.0, 1e-13, -1e-13, 0.0)]
        found = estimate(name, batch_of(np.full(4, 0.7), token_kl=kl))
        if name != "reinforce++":
            assert not np.concatenate(found.advantages).any(), name
        assert found.constant_fraction == 1.0, name


def test_a_right_answer_whose_kl_costs_all_it_earned_is_no_better_than_a_wrong_one():
    """The group differs in the task's score, so it is not a constant one; its sums agree."""
    kl = [np.array([1.0]), np.array([0.0])]
    found = estimate("grpo", batch_of([1.0, 0.0], token_kl=kl))
    assert np.concatenate(found.advantages).tolist() == [0.0, 0.0]
    assert found.num_constant_groups == 0


def test_remax_by_hand():
    """Reward to go less the greedy answer's score, which KL does not shape."""
    batch = batch_of(
        [1.0, 0.0],
        masks=[[1, 0, 1], [1, 1]],
        token_kl=[np.array([0.1, 5.0, 0.2]), np.zeros(2)],
        baselines=np.array([0.4, 0.4]),
    )
    first, second = estimate("remax", batch).advantages
    np.testing.assert_allclose(first, [1 - 0.3 - 0.4, 0, 1 - 0.2 - 0.4], atol=1e-12)
    np.testing.assert_allclose(second, [-0.4, -0.4], atol=1e-12)


def test_remax_without_a_greedy_score_leaves_the_row_out():
    batch = batch_of([1.0, 1.0], baselines=np.array([np.nan, 0.25]))
    found = estimate("remax", batch)
    np.testing.assert_allclose(np.concatenate(found.advantages), [0, 0.75])
    assert found.num_unscorable == 1
    with pytest.raises(UserError, match="needs baselines"):
        estimate("remax", batch_of([1.0]))


def test_reinforce_plus_plus_carries_returns_over_observations():
    """The answer's reward reaches the tokens before a tool call, discounted by policy
    tokens only. Returns [.25, ., .5, 1] and [0] have mean .4375, unbiased variance .1822917."""
    batch = batch_of([1.0, 0.0], masks=[[1, 0, 1, 1], [1]])
    first, second = estimate("reinforce++", batch, gamma=0.5).advantages
    returns = np.array([0.25, 0.5, 1.0, 0.0])
    expected = (returns - 0.4375) / np.sqrt(0.18229166666666666 + 1e-8)
    np.testing.assert_allclose(first, [expected[0], 0, *expected[1:3]], atol=1e-12)
    np.testing.assert_allclose(second, expected[3:], atol=1e-12)


def test_reinforce_plus_plus_baseline_by_hand():
    """Centred scores .5 (2 tokens), -.5 (1) and 0, 0 of a constant group: mean .1, var .175."""
    batch = batch_of([1.0, 0, 1, 1], [0, 0, 1, 1], masks=[[1, 1], [1, 0], [1], [1]])
    found = estimate("reinforce++-baseline", batch)
    scale = np.sqrt(0.175 + 1e-8)
    np.testing.assert_allclose(found.advantages[0], [0.4 / scale, 0.4 / scale], atol=1e-12)
    np.testing.assert_allclose(found.advantages[1], [-0.6 / scale, 0], atol=1e-12)
    assert np.concatenate(found.advantages[2:]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", [*GROUP_ESTIMATORS, "reinforce++"])
@pytest.mark.parametrize("score", [0.7, 0.1, 1e6, -3.3, 0.0])
@pytest.mark.parametrize("size", [2, 3, 8, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_scores_give_advantage_zero(name, score, size, dtype):
    """Rounding must not turn a constant group into a gradient."""
    found = estimate(name, batch_of(np.full(size, score, dtype=dtype)))
    assert not np.concatenate(found.advantages).any()
    assert (found.num_constant_groups, found.constant_fraction) == (1, 1.0)


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_constant_groups_stay_zero_among_others(name):
    values = per_row(name, batch_of([0.7, 1, 0.7, 0, 0.7, 0], [0, 1, 0, 1, 0, 1]))
    assert values[[0, 2, 4]].tolist() == [0.0, 0.0, 0.0]
    assert values[1] > 0 > values[3] == values[5]


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_group_of_one_has_no_advantage(name):
    """The raw reward is no advantage (verl's loop gives 1.0 for reward 1)."""
    found = estimate(name, batch_of([1.0, np.nan, 5.0], [0, 0, 1]))
    assert np.concatenate(found.advantages).tolist() == [0.0, 0.0, 0.0]
    assert (found.num_singletons, found.num_groups, found.num_constant_groups) == (2, 2, 0)


def test_unscorable_rows_are_outside_the_baseline():
    """A timeout is not a wrong answer: it must not lower the mean of its group."""
    scores = np.array([1.0, None, 0, 0, 0], dtype=object)
    values = per_row("grpo", batch_of(scores))
    np.testing.assert_allclose(values, [1.5, 0, -0.5, -0.5, -0.5], atol=1e-5)
    assert estimate("grpo", batch_of(scores)).num_unscorable == 1


def test_rows_without_policy_tokens_are_outside_the_baseline():
    """An aborted answer gets no reward, so its score of 0 is not the policy's."""
    found = estimate("rloo", batch_of([1.0, 0, 0], masks=[[1], [0, 0], [1]]))
    assert [array.tolist() for array in found.advantages] == [[1.0], [0.0, 0.0], [-1.0]]
    assert found.num_unscorable == 1


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_unscorable_row_changes_no_other(name):
    """Neither baselines nor the whitening of the batch may see it."""
    rng = np.random.default_rng(3)
    batch = full_batch([0.5, 1.0, 0.0, 0.25, 2.0, 1.5], rng)
    extra = full_batch([np.nan], rng)
    together = AdvantageInput(
        np.append(batch.scores, np.nan),
        np.append(batch.group_ids, 0),
        [*batch.masks, *extra.masks],
        [*(batch.token_kl or []), *(extra.token_kl or [])],
        [*(batch.values or []), np.full(len(extra.masks[0]), 1e9)],
        np.append(batch.baselines if batch.baselines is not None else [], 7.0),
    )
    expected, found = estimate(name, batch), estimate(name, together)
    assert not found.advantages[-1].any()
    # Sums over arrays of other lengths may round differently; the row itself would move by .1.
    for ours, theirs in zip(found.advantages[:-1], expected.advantages, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert found.num_unscorable == expected.num_unscorable + 1


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("garbage", [np.nan, 1e9, -np.inf])
def test_values_outside_the_mask_change_nothing(name, garbage):
    """Nothing outside the mask changes an advantage."""
    clean = full_batch([0.5, 1.0, 0.0, 0.25, 2.0, 1.5], np.random.default_rng(4))
    dirty = {
        field: [np.where(m, a, garbage) for m, a in zip(clean.masks, arrays, strict=True)]
        for field, arrays in (("token_kl", clean.token_kl), ("values", clean.values))
        if arrays is not None
    }
    batch = AdvantageInput(
        clean.scores, clean.group_ids, clean.masks, baselines=clean.baselines, **dirty
    )
    for ours, theirs in zip(
        estimate(name, batch).advantages, estimate(name, clean).advantages, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_batches_without_anything_to_learn(name):
    """No row, only masked rows, only unscorable rows: zeros of the right shapes, no crash."""
    for scores, masks in (([], []), ([1.0, 0.0], [[0, 0], []]), ([np.nan, None], [[1], [1, 1]])):
        batch = batch_of(
            np.array(scores, dtype=object),
            masks=masks,
            values=[np.ones(len(mask)) for mask in masks],
            baselines=np.zeros(len(scores)),
        )
        found = estimate(name, batch)
        assert [array.tolist() for array in found.advantages] == [[0.0] * len(m) for m in masks]
        assert found.num_unscorable == len(scores)


@given(
    st.lists(st.tuples(st.floats(-100, 100, width=32), st.integers(0, 5)), min_size=1, max_size=60)
)
def test_advantages_of_a_group_sum_to_zero_in_any_order(rows):
    """Advantages of a group sum to 0, and rows may be reordered."""
    scores = np.array([score for score, _ in rows])
    groups = np.array([group for _, group in rows])
    order = np.random.default_rng(0).permutation(len(rows))
    for name in ("grpo", "rloo"):
        values = per_row(name, batch_of(scores, groups))
        for group in set(groups.tolist()):
            assert abs(values[groups == group].sum()) < 1e-6
        moved = per_row(name, batch_of(scores[order], groups[order]))
        np.testing.assert_allclose(moved, values[order], atol=1e-9)


def test_a_users_estimator(tmp_path, monkeypatch):
    """A function in any module is an algorithm; one number per row is spread over its tokens."""
    (tmp_path / "my_estimators.py").write_text(
        "import numpy as np\n"
        "from rlcore.algorithms.advantages import AdvantageResult\n"
        "def centred(batch, *, scale=1.0):\n"
        "    return scale * (batch.scores - np.nanmean(batch.scores))\n"
        "def everywhere(batch):\n"
        "    return AdvantageResult([np.ones(len(mask)) for mask in batch.masks])\n"
        "def wrong(batch):\n"
        "    return np.zeros(len(batch.masks) + 1)\n"
        "def infinite(batch):\n"
        "    return np.full(len(batch.masks), np.inf)\n"
        "def late(batch):\n"
        "    arrays = [np.full(len(mask), np.nan) for mask in batch.masks]\n"
        "    arrays[0][0] = arrays[1][1] = 0.0\n"
        "    return AdvantageResult(arrays)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    batch = batch_of([1.0, 0.0, np.nan], masks=[[1, 0], [1, 1], [1]])
    found = estimate("my_estimators:centred", batch, scale=2.0)
    assert isinstance(found, AdvantageResult)
    assert [array.tolist() for array in found.advantages] == [[1, 0], [-1, -1], [0]]
    assert (found.num_groups, found.num_unscorable) == (1, 1)
    everywhere = estimate("my_estimators:everywhere", batch).advantages
    assert [array.tolist() for array in everywhere] == [[1, 0], [1, 1], [0]]
    for name, sentence in (
        ("wrong", "must return one number per trajectory"),
        ("infinite", "gives inf at token 0 of row 0"),
        ("centered", r"has no centered\(\); did you mean 'centred'"),
    ):
        with pytest.raises(UserError, match=sentence):
            estimate(f"my_estimators:{name}", batch)
    with pytest.raises(UserError, match="gives nan at token 2 of row 1"):
        estimate("my_estimators:late", batch_of([1.0, 0.0], masks=[[1, 0], [0, 1, 1]]))
    with pytest.raises(UserError, match="there is no module 'not_there'"):
        estimate("not_there:f", batch)


def test_a_broken_module_of_the_users_shows_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"'not_installed_anywhere' \(needs_more.py line 1\)"):
        estimate("needs_more:f", batch_of([1.0]))


def test_bad_input_is_reported():
    batch = batch_of([1.0, 0.0])
    with pytest.raises(UserError, match="did you mean 'grpo'"):
        estimate("gpro", batch)
    with pytest.raises(UserError, match="its options are norm_by_std, eps, tolerance"):
        estimate("grpo", batch, norm_by_stdev=False)
    with pytest.raises(UserError, match=r"scores\[1\] = inf"):
        batch_of([0.0, np.inf])
    with pytest.raises(UserError, match="one of each per row"):
        AdvantageInput(np.zeros(3), np.zeros(2), [np.ones(1, dtype=bool)] * 3)
    with pytest.raises(UserError, match="there are 1 masks"):
        AdvantageInput(np.zeros(3), np.zeros(3), [np.ones(1, dtype=bool)])
    with pytest.raises(UserError, match=r"values\[1\] has shape \(2,\)"):
        batch_of([1.0, 0.0], values=[np.zeros(1), np.zeros(2)])
    with pytest.raises(UserError, match=r"token_kl\[0\] is not finite"):
        batch_of([1.0], token_kl=[np.array([np.nan])])
    with pytest.raises(UserError, match="needs values"):
        estimate("gae", batch)


def test_estimators_load_without_torch():
    """The flow's process computes advantages; importing torch would cost it seconds."""
    code = (
        "import sys, rlcore.algorithms.advantages, rlcore.algorithms.aggregation;"
        "import rlcore.algorithms.overlong, rlcore.algorithms.losses, rlcore.algorithms.kl;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
