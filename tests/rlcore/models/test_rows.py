"""Rows as a function of lengths and limits alone."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.models.rows import ATTENTION_TOKENS, Layout, Part, part_tokens, plan_rows

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60)


def shapes_of(lengths: np.ndarray, budget: int, row_tokens: int | None) -> list[tuple[int, int]]:
    """(rows, width) of each micro-batch; every sequence is in one of them."""
    parts = Layout(lengths, budget, row_tokens).parts(np.arange(len(lengths)))
    held = np.concatenate([[each.member for each in row] for rows, _ in parts for row in rows])
    assert sorted(held.tolist()) == list(range(len(lengths)))
    return [(len(rows), width) for rows, width in parts]


def cost(shapes: list[tuple[int, int]]) -> int:
    return sum(rows * width * (ATTENTION_TOKENS + width) for rows, width in shapes)


def test_rows_are_first_fit_decreasing() -> None:
    rows = plan_rows(np.array([3, 9, 4, 6, 1]), 10)
    assert [row.tolist() for row in rows] == [[1, 4], [3, 2], [0]]


@pytest.mark.parametrize(
    ("shortest", "longest", "multiple"), [(12, 20, 2), (20, 40, 2), (100, 180, 1), (37, 37, 1)]
)
def test_rows_are_longer_where_padding_costs_more_than_attention(
    shortest: int, longest: int, multiple: int
) -> None:
    """Of lengths above half of the longest, each would have a row of its own; and attention over
    long rows costs more than their padding."""
    lengths = np.random.default_rng(0).integers(shortest, longest + 1, 256)
    lengths[0] = longest
    width = max(width for _, width in shapes_of(lengths, 4096, None))
    assert (multiple - 1) * longest < width <= multiple * longest
    plain, ours = (
        sum(rows * width for rows, width in shapes_of(lengths, 4096, row_tokens))
        for row_tokens in (longest, None)
    )
    padding = [tokens / lengths.sum() - 1 for tokens in (plain, ours)]
    assert padding[1] == padding[0] if multiple == 1 else padding[1] < 0.6 * padding[0]


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(30, 120), st.randoms(use_true_random=False))
def test_the_choice_is_of_the_lengths_and_never_costs_more(
    lengths: list[int], budget: int, random
) -> None:
    """In any order of the sequences, within the budget."""
    found = shapes_of(np.array(lengths), budget, None)
    assert all(rows * width <= budget for rows, width in found)
    assert cost(found) <= cost(shapes_of(np.array(lengths), budget, max(lengths)))
    random.shuffle(lengths)
    assert shapes_of(np.array(lengths), budget, None) == found


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 20), st.integers(0, 9))
def test_micro_batches_hold_as_many_whole_groups_as_fit(
    lengths: list[int], num_groups: int, seed: int
) -> None:
    """One more group would not fit, and few packings are tried for each micro-batch."""
    draw = np.random.default_rng(seed)
    sizes = np.array(lengths)
    groups = draw.integers(0, num_groups, len(sizes))
    kept = np.flatnonzero(draw.random(len(sizes)) < 0.8)
    budget = max([sizes[groups == group].sum() for group in groups]) + int(sizes.max()) * 8
    tried: list[int] = []

    class Counted(Layout):
        def part(self, members: np.ndarray) -> Part:
            tried.append(len(members))
            return Layout.part(self, members)

    layout = Counted(sizes, budget)
    if not len(kept):
        return
    names = np.array([f"prompt {group:02d}" for group in groups])
    parts = layout.parts_of_groups(kept, names)
    assert len(tried) <= 12 * len(parts)
    held = [[each.member for row in rows for each in row] for rows, _ in parts]
    assert sorted(itertools.chain(*held)) == kept.tolist()
    owners = [sorted({int(groups[member]) for member in members}) for members in held]
    assert list(itertools.chain(*owners)) == sorted(set(groups[kept].tolist()))
    for members, following in zip(held, owners[1:], strict=False):
        added = kept[groups[kept] == following[0]]
        assert part_tokens(layout.part(np.concatenate([members, added]))) > budget
    assert all(part_tokens(part) <= budget for part in parts)
