"""Attention by a loop over documents against torch's, block by block: outputs and gradients."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.kernels import parallel
from rlcore.models import block_attention
from rlcore.models import blocks as layout
from rlcore.models.block_attention import Blocks, attend_by_blocks
from rlcore.models.document_attention import MOST_KEYS, documents_of_pass, serves
from rlcore.models.packing import MicroBatch, Sequences, pack

HEADS = [(4, 2, 16), (2, 2, 32), (3, 1, 48)]  # of queries, of keys, dimensions of one
ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=20)
Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

pytestmark = pytest.mark.skipif(
    not parallel.serves(torch.zeros(1)), reason="gpu: torch computes without numba"
)


@pytest.fixture(autouse=True, scope="module")
def always_shared() -> object:
    with patch.object(layout, "BRANCHES_TOKENS", 0), patch.object(layout, "BRANCH_TOKENS", 0):
        yield


def packed(rows: list[tuple[int, int]]) -> MicroBatch:
    """Answers of so many tokens to the prompt of a number, which has ten tokens times that."""
    ids = [np.arange(10 * prompt + answer) + 1000 * prompt for prompt, answer in rows]
    for number, (row, (prompt, _)) in enumerate(zip(ids, rows, strict=True)):
        row[10 * prompt :] += 50_000 + 100 * number  # no token is 0, as padding is
    masks = [np.arange(len(row)) >= max(1, 10 * p) for row, (p, _) in zip(ids, rows, strict=True)]
    batch = Sequences(ids, masks)
    (part,) = pack(batch, micro_batch_tokens=8192, blocks=True, share_prompts=True)
    return part


def drawn(tokens: int, heads: tuple[int, int, int]) -> Parts:
    """Queries, keys and values [1, heads, tokens, dimensions], cut from one tensor as a layer's."""
    draw = torch.Generator().manual_seed(tokens)
    of_query, of_key, dim = heads
    together = torch.randn(1, tokens, (of_query + 2 * of_key) * dim, generator=draw)
    parts = together.unflatten(-1, (-1, dim)).transpose(1, 2).split([of_query, of_key, of_key], 1)
    query, key, value = (part.detach().requires_grad_() for part in parts)
    return query, key, value


def attended(part: MicroBatch, parts: Parts, *, by_torch: bool) -> list[torch.Tensor]:
    """The output, and the gradients of a fixed sum of it."""
    blocks = Blocks(part.blocks, torch.from_numpy(part.position_ids), torch.float32)
    with patch.object(block_attention, "serves", lambda *_: not by_torch):
        found, _ = attend_by_blocks(torch.nn.Module(), *parts, None, 0.3, blocks=blocks)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    # Padding, which nothing reads, is a document for the one and attends to its row for the other.
    padding = torch.from_numpy(part.input_ids[0] == 0)
    weights[:, padding] = 0.0
    found = found.masked_fill(padding[:, None, None], 0.0)
    return [found, *torch.autograd.grad((found * weights).sum(), parts)]


@pytest.mark.parametrize("heads", HEADS)
@settings(deadline=None, max_examples=15)
@given(rows=ROWS)
def test_outputs_and_gradients_are_those_of_torch(heads, rows) -> None:
    part = packed(rows)
    parts = drawn(part.input_ids.size, heads)
    ours, theirs = (attended(part, parts, by_torch=way) for way in (False, True))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)


def test_the_longest_documents_and_large_scores_are_those_of_torch() -> None:
    part = packed([(0, MOST_KEYS), (2, MOST_KEYS - 21), (2, 3), (0, 1)])
    parts = drawn(part.input_ids.size, HEADS[0])
    with torch.no_grad():
        parts[0].mul_(30.0)  # scores of some hundred: all weight on few keys
    ours, theirs = (attended(part, parts, by_torch=way) for way in (False, True))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-3)


def test_gradients_of_some_parts_alone_and_of_a_plain_sum() -> None:
    part = packed([(0, 7), (1, 20), (1, 5)])
    blocks = Blocks(part.blocks, torch.from_numpy(part.position_ids), torch.float32)
    drawn_parts = drawn(part.input_ids.size, HEADS[0])

    def gradients(*, by_torch: bool, wanted: int) -> torch.Tensor:
        query, key, value = parts = [each.detach() for each in drawn_parts]
        parts[wanted].requires_grad_()
        with patch.object(block_attention, "serves", lambda *_: not by_torch):
            found, _ = attend_by_blocks(
                torch.nn.Module(), query, key, value, None, 0.3, blocks=blocks
            )
        real = torch.from_numpy(part.input_ids[0] != 0)
        return torch.autograd.grad(found[:, real].sum(), parts[wanted])[0]

    for wanted in range(3):
        ours, theirs = (gradients(by_torch=way, wanted=wanted) for way in (False, True))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


def test_what_a_hook_saved_in_another_layout_gives_the_same_gradients() -> None:
    """As offloading of activations does, which copies them."""
    part = packed([(0, 7), (0, 20)])
    parts = drawn(part.input_ids.size, HEADS[0])
    plain = attended(part, parts, by_torch=False)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda each: each.clone(memory_format=torch.contiguous_format), lambda each: each
    ):
        copied = attended(part, parts, by_torch=False)
    for one, other in zip(plain, copied, strict=True):
        assert torch.equal(one, other)


def test_longer_documents_are_left_to_torch() -> None:
    for longest, known in ((MOST_KEYS, True), (MOST_KEYS + 1, False)):
        part = packed([(0, 5), (0, longest)])
        found = documents_of_pass(part.blocks, part.position_ids[0])
        assert (found is not None) == known


def test_heads_of_other_sizes_and_other_numbers_are_left_to_torch() -> None:
    query, key, value = drawn(5, (4, 2, 16))
    assert serves(query, key, value)
    assert not serves(*drawn(5, (4, 2, 24)))
    assert not serves(query.bfloat16(), key.bfloat16(), value.bfloat16())
    assert not serves(query[:, :3], key, value)
    assert not serves(query, key, value[:, :1])
    assert not serves(query, key[:, :, :4], value[:, :, :4])


def test_any_layout_of_heads_gives_the_same() -> None:
    """Other layers hand over tensors whose heads are far apart."""
    part = packed([(0, 7), (0, 20), (1, 5), (1, 3)])
    parts = drawn(part.input_ids.size, HEADS[0])
    query, key, value = (each.detach().contiguous().requires_grad_() for each in parts)
    apart = query, key, value
    ours = [attended(part, each, by_torch=False) for each in (parts, apart)]
    for one, other in zip(*ours, strict=True):
        assert torch.equal(one, other)


def test_bits_do_not_depend_on_threads() -> None:
    part = packed([(prompt, answer) for prompt in (0, 1, 2) for answer in (3, 17, 31, 40)])
    parts, before, found = drawn(part.input_ids.size, HEADS[0]), torch.get_num_threads(), []
    for number in (1, 2, 5):
        torch.set_num_threads(number)
        found.append(attended(part, parts, by_torch=False))
    torch.set_num_threads(before)
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert torch.equal(one, two)


def test_a_document_does_not_depend_on_its_neighbours() -> None:
    """Not a bit of those before and behind moves, nor is what is not finite hidden or spread."""
    part = packed([(0, 40), (0, 33), (0, 12)])
    size = part.input_ids.size
    found = []
    for bad in (0.0, float("nan")):
        parts = drawn(size, HEADS[0])
        with torch.no_grad():
            for each in parts:
                each[:, :, 40:45] += 1.0 + bad
        found.append(attended(part, parts, by_torch=False))
    for one, other in zip(*found, strict=True):
        places = other.transpose(1, 2) if other is not found[1][0] else other
        assert not torch.isfinite(places[:, 40:45]).any()
        mine = (each if each.shape[1] == size else each.transpose(1, 2) for each in (one, other))
        first, second = mine
        assert torch.equal(first[:, :40], second[:, :40])
        assert torch.equal(first[:, 73:], second[:, 73:])
