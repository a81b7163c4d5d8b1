from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.models.packing import Sequences, idle_micro_batch, pack
from schemas.errors import UserError

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60)


def sequences_of(lengths: list[int]) -> Sequences:
    """Token ids count through the whole batch, so every token is its own name."""
    starts = np.cumsum(lengths) - lengths
    ids = [np.arange(s, s + n, dtype=np.int32) for s, n in zip(starts, lengths, strict=True)]
    masks = [np.arange(n) >= max(1, n // 2) for n in lengths]
    values = [row.astype(np.float32) / 10 for row in ids]
    return Sequences(ids, masks, {"value": values})


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(30, 120), st.sampled_from([None, 30, 47]))
def test_every_target_is_packed_once_beside_its_predecessor(lengths, budget, row_tokens):
    """A shifted target or a lost token trains the wrong thing without a crash."""
    sequences = sequences_of(lengths)
    for targets in ("loss_mask", "all"):
        batches = pack(
            sequences,
            micro_batch_tokens=max(budget, row_tokens or 0),
            row_tokens=row_tokens,
            targets=targets,
        )
        sources = np.concatenate([batch.sources for batch in batches])
        wanted = np.concatenate(sequences.loss_mask)
        if targets == "all":
            wanted = np.concatenate([np.arange(n) > 0 for n in lengths])
        assert sorted(sources.tolist()) == np.flatnonzero(wanted).tolist()
        for batch in batches:
            assert batch.input_ids.size <= max(budget, row_tokens or 0)
            np.testing.assert_array_equal(batch.target_ids, batch.sources)
            flat = batch.input_ids.reshape(-1)
            np.testing.assert_array_equal(flat[batch.predictors], batch.target_ids - 1)
            np.testing.assert_array_equal(flat[batch.predictors + 1], batch.target_ids)
            owner = np.repeat(np.arange(len(lengths)), lengths)
            np.testing.assert_array_equal(owner[batch.sources], batch.sequences)
        assert sum(batch.num_tokens for batch in batches) == sum(lengths)


@settings(max_examples=60, deadline=None)
@given(LENGTHS)
def test_documents_and_padding_restart_their_positions(lengths):
    """The model library sees documents only through restarts of ``position_ids``."""
    for batch in pack(sequences_of(lengths), micro_batch_tokens=90):
        for row_ids, row_positions in zip(batch.input_ids, batch.position_ids, strict=True):
            starts = np.flatnonzero(row_positions == 0)
            assert starts[0] == 0
            for start, end in zip(starts, [*starts[1:], len(row_positions)], strict=True):
                np.testing.assert_array_equal(row_positions[start:end], np.arange(end - start))
                if row_ids[start:end].any():
                    steps = np.diff(row_ids[start:end])
                    assert (steps == 1).all(), "two documents without a restart between them"


def test_micro_batches_are_trimmed_to_their_longest_row():
    """Ragged batches: short rows do not pay for the longest."""
    batches = pack(sequences_of([20, 5]), micro_batch_tokens=20, row_tokens=20)
    assert [batch.input_ids.shape for batch in batches] == [(1, 20), (1, 5)]


def test_only_the_kept_sequences_are_packed():
    (batch,) = pack(sequences_of([4, 5, 6]), micro_batch_tokens=40, kept=np.array([2, 0]))
    assert set(batch.sequences.tolist()) == {0, 2}
    assert batch.num_tokens == 10
    assert pack(sequences_of([4]), micro_batch_tokens=40, kept=np.array([], int)) == []


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 6), st.sampled_from([None, 30, 47]))
def test_last_tokens_of_whole_groups(lengths, num_groups, row_tokens):
    """A pair of responses in two micro-batches would never be compared."""
    groups = np.arange(len(lengths)) % num_groups
    sequences = replace(sequences_of(lengths), groups=groups)
    largest = max(int(np.count_nonzero(groups == g)) for g in range(num_groups))
    budget = 60 * largest
    batches = pack(
        sequences,
        micro_batch_tokens=budget,
        row_tokens=row_tokens,
        targets="last",
        whole_groups=True,
    )
    ends = np.cumsum(lengths) - 1
    found = np.concatenate([batch.sources for batch in batches])
    assert sorted(found.tolist()) == ends.tolist()
    homes = [set(groups[batch.sequences].tolist()) for batch in batches]
    assert sum(len(home) for home in homes) == len(set().union(*homes)), "a group is split"
    for batch in batches:
        assert batch.input_ids.size <= budget
        np.testing.assert_array_equal(batch.sources, ends[batch.sequences])
        read = batch.input_ids.reshape(-1)[batch.predictors]
        np.testing.assert_array_equal(read, batch.target_ids)
        np.testing.assert_array_equal(read, batch.sources)


def test_groups_that_cannot_be_kept_whole_are_reported():
    sequences = sequences_of([5, 5, 5])
    with pytest.raises(UserError, match=r"set Sequences\.groups"):
        pack(sequences, micro_batch_tokens=20, whole_groups=True)
    grouped = replace(sequences, groups=np.zeros(3, int))
    with pytest.raises(UserError, match=r"3 responses need 15 tokens .* it holds 14"):
        pack(grouped, micro_batch_tokens=14, whole_groups=True)


def test_an_idle_pass_has_a_target_and_no_tokens():
    idle = idle_micro_batch()
    assert (idle.input_ids.shape, len(idle.predictors), idle.num_tokens) == ((1, 2), 1, 0)


def test_bad_sequences_are_reported():
    good = sequences_of([4, 5])
    with pytest.raises(UserError, match=r"token_ids\[1\] is empty"):
        Sequences([good.token_ids[0], np.zeros(0, int)], [np.zeros(4, bool), np.zeros(0, bool)])
    with pytest.raises(UserError, match=r"loss_mask\[0\] is True on the first token"):
        Sequences(good.token_ids, [np.ones(4, bool), np.zeros(5, bool)])
    with pytest.raises(UserError, match="has 5 tokens and a packed row holds 4"):
        pack(good, micro_batch_tokens=8, row_tokens=4)
    with pytest.raises(UserError, match="a packed row has 5 tokens and a micro-batch at most 4"):
        pack(good, micro_batch_tokens=4)
