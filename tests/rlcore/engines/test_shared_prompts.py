"""Attention over prompts that rows share, against each row's own keys, one row after the other."""

import pytest
import torch

from rlcore.engines.shared_prompts import MOST_SLOTS, KeptLayer, Slots

HEADS, GROUP, DIM, WIDTH, ROOM = 2, 3, 8, 7, 2
CPU = torch.device("cpu")


def _plain(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[K, G, D] of one row over [K, T, D]."""
    return (query @ keys.transpose(1, 2)).softmax(-1) @ values


@pytest.mark.parametrize("counts", [[4, 4, 4], [1, 1, 1, 1], [1], [9, 1, 1, 1, 2], [40, 1, 1]])
def test_each_row_attends_to_its_prompt_and_its_own_tokens(counts: list[int]) -> None:
    """Rows leave at random until one is left; none may read another's tokens or prompt, and
    a prompt with many rows beside prompts with one must not multiply the work."""
    draw = torch.Generator().manual_seed(len(counts))
    prompts = torch.randn(2, len(counts), HEADS, WIDTH, DIM, generator=draw)
    lengths = sorted(torch.randint(1, WIDTH, (len(counts) - 1,), generator=draw).tolist())
    lengths = [WIDTH, *reversed(lengths)]
    prompt_of = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    own = [torch.zeros(2, HEADS, 0, DIM) for _ in prompt_of]
    layer = KeptLayer([(prompts[0], prompts[1])], len(prompt_of), ROOM)
    padding = WIDTH - torch.tensor(lengths)
    hidden = torch.arange(WIDTH) < padding[:, None, None]
    slots = Slots(prompt_of, HEADS, CPU)
    layer.select(slots.prompts)
    shown = hidden[slots.prompts]
    while True:
        rows = len(prompt_of)
        new = torch.randn(rows, 2 * HEADS, DIM, generator=draw)
        queries = torch.randn(rows, HEADS, GROUP, DIM, generator=draw)
        layer.update(*new.unflatten(1, (2, HEADS)).unsqueeze(-2).unbind(1))
        own = [
            torch.cat((each, new[row].view(2, HEADS, 1, DIM)), 2) for row, each in enumerate(own)
        ]
        got = layer.attend(queries.view(-1, GROUP, DIM), slots, shown).view_as(queries)
        for row, prompt in enumerate(prompt_of.tolist()):
            keys, values = torch.cat((prompts[:, prompt, :, padding[prompt] :], own[row]), 2)
            torch.testing.assert_close(got[row], _plain(queries[row], keys, values))
        assert len(slots.prompts) * slots.size <= MOST_SLOTS * rows
        if rows == 1:
            return
        order = torch.randperm(rows, generator=draw)[: max(1, rows - rows // 3 - 1)]
        staying = order.clone()
        layer.move(torch.arange(len(order)), staying)
        prompt_of, own = prompt_of[order], [own[row] for row in order.tolist()]
        if not slots.keep(order):
            present, slots = slots.prompts, Slots(prompt_of, HEADS, CPU)
            layer.select(torch.searchsorted(present, slots.prompts))
            shown = hidden[slots.prompts]
