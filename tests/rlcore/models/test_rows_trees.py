"""Sequences that begin alike are packed as trees: fewer tokens, and none sees another's."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.models.logprobs import tree_mask
from rlcore.models.packing import MicroBatch, Sequences, pack
from rlcore.models.rows import prompts_of, tree_lengths, trees_of

# (prompt of three, its tokens, tokens of the answer); a prompt of 0 tokens is never shared
ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=30)
PROMPT_TOKENS = (1, 5, 12)
ANSWERS = 1000  # their token ids begin there


def answers(rows: list[tuple[int, int]]) -> Sequences:
    """Every token of an answer is its own name; prompts repeat."""
    ids, masks = [], []
    for at, (prompt, size) in enumerate(rows):
        asked = np.arange(PROMPT_TOKENS[prompt]) + 100 * (prompt + 1)
        ids.append(np.concatenate([asked, ANSWERS + 10 * at + np.arange(size)]).astype(np.int32))
        masks.append(np.arange(len(ids[-1])) >= len(asked))
    return Sequences(ids, masks, groups=np.array([prompt for prompt, _ in rows]))


def seen_from(batch: MicroBatch, target: int) -> list[int]:
    """The tokens that the predictor of ``target`` attends to, by position."""
    place = int(batch.predictors[target])
    row, column = divmod(place, batch.input_ids.shape[1])
    assert batch.documents is not None
    assert batch.continued is not None
    mask = tree_mask(torch.from_numpy(batch.documents), torch.from_numpy(batch.continued))
    assert mask is not None
    seen = np.flatnonzero(mask[row, 0, column].numpy())
    order = seen[np.argsort(batch.position_ids[row, seen], kind="stable")]
    np.testing.assert_array_equal(batch.position_ids[row, order], np.arange(len(order)))
    return batch.input_ids[row, order].tolist()


@settings(max_examples=80, deadline=None)
@given(
    ROWS,
    st.sampled_from([None, 30, 64]),
    st.sampled_from(["loss_mask", "last"]),
    st.booleans(),
)
def test_an_answer_sees_its_prompt_and_itself(rows, row_tokens, targets, whole_groups) -> None:
    """Each target once, at a place that attends to exactly what comes before it in its sequence."""
    sequences = answers(rows)
    batches = pack(
        sequences,
        micro_batch_tokens=1000,
        row_tokens=row_tokens,
        targets=targets,
        whole_groups=whole_groups,
        share_prompts=True,
    )
    starts = np.cumsum(sequences.lengths) - sequences.lengths
    found = np.concatenate([batch.sources for batch in batches])
    wanted = np.concatenate(sequences.loss_mask)
    if targets == "last":
        wanted = np.isin(np.arange(len(wanted)), starts + sequences.lengths - 1)
    assert sorted(found.tolist()) == np.flatnonzero(wanted).tolist()
    assert sum(batch.num_tokens for batch in batches) == sequences.num_tokens
    for batch in batches:
        for target, (sequence, source) in enumerate(
            zip(batch.sequences.tolist(), batch.sources.tolist(), strict=True)
        ):
            at = source - starts[sequence]
            ids = sequences.token_ids[sequence]
            assert batch.target_ids[target] == ids[at]
            if batch.documents is not None:
                before = ids[: at + (targets == "last")].tolist()
                assert seen_from(batch, target) == before


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(21, 80))
def test_trees_hold_each_sequence_once_within_a_row(rows, row_tokens) -> None:
    sequences = answers(rows)
    prompts = prompts_of(sequences.token_ids, sequences.loss_mask)
    members = np.arange(len(sequences))
    trees = trees_of(sequences.lengths, members, row_tokens, prompts)
    held = np.concatenate([tree.members for tree in trees])
    assert sorted(held.tolist()) == members.tolist()
    sizes = tree_lengths(trees, sequences.lengths)
    assert sizes.max() <= row_tokens
    for tree in trees:
        assert len({rows[at][0] for at in tree.members.tolist()}) == 1
        assert tree.shared == (
            PROMPT_TOKENS[rows[tree.members[0]][0]] if len(tree.members) > 1 else 0
        )


def test_a_group_costs_its_prompt_once() -> None:
    """Eight answers of six tokens to a prompt of twelve: 60 tokens instead of 144."""
    sequences = answers([(2, 6)] * 8)
    shared, whole = (
        pack(sequences, micro_batch_tokens=1000, share_prompts=share) for share in (True, False)
    )
    assert [sum(b.input_ids.size for b in batches) for batches in (shared, whole)] == [60, 144]


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(21, 120))
def test_passes_of_trees_keep_the_budget(rows, budget) -> None:
    """Also where a prompt's answers do not fit one pass."""
    batches = pack(answers(rows), micro_batch_tokens=budget, share_prompts=True)
    assert all(batch.input_ids.size <= budget for batch in batches)
    assert sum(np.count_nonzero(batch.input_ids >= ANSWERS) for batch in batches) == sum(
        size for _, size in rows
    )


def test_what_shares_nothing_is_packed_as_ever() -> None:
    """Targets within prompts, sequences that nothing is trained on, and prompts that differ."""
    sequences = answers([(0, 4), (0, 4), (1, 3)])
    nothing = Sequences(sequences.token_ids, [np.zeros_like(m) for m in sequences.loss_mask])
    cases = [
        (sequences, "all"),
        (nothing, "last"),
        (answers([(0, 4), (1, 4), (2, 4)]), "loss_mask"),
    ]
    for each, targets in cases:
        ours, plain = (
            pack(each, micro_batch_tokens=1000, targets=targets, share_prompts=share, row_tokens=40)
            for share in (True, False)
        )
        assert len(ours) == len(plain)
        for a, b in zip(ours, plain, strict=True):
            assert a.documents is None
            np.testing.assert_array_equal(a.input_ids, b.input_ids)
            np.testing.assert_array_equal(a.predictors, b.predictors)


def test_order_of_sequences_does_not_move_a_row() -> None:
    """The plan is of lengths and prompts, so that a run that is repeated cuts the same passes."""
    rows = [(2, 6), (1, 3), (2, 2), (1, 9), (0, 5), (2, 4)]
    shapes = []
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0]):
        batches = pack(
            answers([rows[at] for at in order]),
            micro_batch_tokens=64,
            share_prompts=True,
        )
        shapes.append([batch.input_ids.shape for batch in batches])
    assert shapes[0] == shapes[1]
