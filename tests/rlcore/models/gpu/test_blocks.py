"""Rows of several lengths as a function of lengths and limits alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.models.gpu.blocks import (
    ATTENTION_TOKENS,
    BLOCK_TOKENS,
    Part,
    part_tokens,
    parts_of_blocks,
)
from rlcore.models.rows import Layout
from rlcore.models.trees import PromptIndex

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80)


def parts(lengths: np.ndarray, budget: int) -> list[Part]:
    """The blocks of each micro-batch; every sequence is in one of them, and fits its row."""
    found = parts_of_blocks(lengths, np.arange(len(lengths)), budget)
    held = [each.member for part in found for rows, _ in part for row in rows for each in row]
    assert sorted(held) == list(range(len(lengths)))
    for rows, width in (block for part in found for block in part):
        assert max(sum(each.size for each in row) for row in rows) <= width
    return found


def cost(found: list[Part]) -> float:
    return sum(
        len(rows) * width * (1 + width / ATTENTION_TOKENS) + BLOCK_TOKENS
        for part in found
        for rows, width in part
    )


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(60, 200), st.randoms(use_true_random=False))
def test_all_is_laid_out_within_the_budget_in_any_order(lengths, budget, random) -> None:
    found = parts(np.array(lengths), budget)
    assert all(0 < part_tokens(part) <= budget for part in found)
    shapes = [[(len(rows), width) for rows, width in part] for part in found]
    random.shuffle(lengths)
    again = parts(np.array(lengths), budget)
    assert [[(len(rows), width) for rows, width in part] for part in again] == shapes


@pytest.mark.parametrize("count", [1, 5, 64])
def test_equal_lengths_lie_alone_in_one_block(count: int) -> None:
    (part,) = parts(np.full(count, 37), 4096)
    assert [(len(rows), width) for rows, width in part] == [(count, 37)]


@pytest.mark.parametrize("kind", ["lognormal", "narrow", "wide", "two"])
def test_rows_of_several_lengths_cost_less_than_rows_of_one(kind: str) -> None:
    """Padding, attention and the blocks themselves, counted together."""
    rng = np.random.default_rng(0)
    lengths = {
        "lognormal": np.clip(np.round(rng.lognormal(3.3, 0.8, 256)), 4, 300).astype(np.int64),
        "narrow": rng.integers(12, 21, 256),
        "wide": rng.integers(1, 400, 256),
        "two": np.repeat([300, 10], [4, 252]),
    }[kind]
    rows = Layout(lengths, 4096).parts(np.arange(len(lengths)))
    ours = parts(lengths, 4096)
    assert cost(ours) < cost(rows)
    assert sum(map(part_tokens, ours)) < 1.05 * lengths.sum()


@pytest.mark.parametrize(
    ("asked", "answers", "group", "shares"),
    [
        (1, (1, 300), 2, False),  # a BOS token alone
        (1, (36, 36), 2, False),
        (8, (20, 120), 8, False),
        (16, (1, 24), 8, True),
        (40, (20, 120), 8, True),
        (80, (100, 400), 8, True),
        (500, (1, 12), 8, True),
    ],
)
def test_prompts_are_shared_where_that_pays(
    asked: int, answers: tuple[int, int], group: int, shares: bool
) -> None:
    """Prompt tokens, those of the answers from and to, and answers to a prompt; all but the last
    were measured, with the model that the costs were fitted to."""
    said = np.random.default_rng(0).integers(answers[0], answers[1] + 1, 256)
    prompts = PromptIndex(np.arange(256) // group, np.full(256, asked))
    ours, whole = (
        parts_of_blocks(asked + said, np.arange(256), 4096, given) for given in (prompts, None)
    )
    computed = sum(map(part_tokens, ours))
    if shares:
        assert computed < 0.9 * sum(map(part_tokens, whole))
    else:
        shapes = [[[(len(rows), w) for rows, w in part] for part in each] for each in (ours, whole)]
        assert shapes[0] == shapes[1]
