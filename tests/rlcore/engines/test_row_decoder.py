"""What is sampled row by row, against a plain forward pass over the whole sequence."""

from pathlib import Path

import pytest
import torch

from rlcore.engines import row_decoder, shared_prompts
from rlcore.engines.types import Sampling, TurnRequest
from schemas.outcomes import FinishReason
from tests.rlcore.engines.conftest import tiny_model
from tests.rlcore.engines.models import CONTEXT, LLAMA_LIKE, OTHERS, VOCAB
from tests.rlcore.engines.rows import engine_of, furthest, requests_of_budgets

NEAR = 1e-5  # nats, float32


@pytest.mark.parametrize("kind", [*LLAMA_LIKE, *OTHERS])
def test_logprobs_are_those_of_the_whole_sequence(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column too many or too few, a row in another's place, an old key: each shows here."""
    monkeypatch.setattr(row_decoder, "PREFILL_TOKENS", 150)  # prompts in several passes
    monkeypatch.setattr(row_decoder, "BLOCK", 8)  # buffers that grow
    monkeypatch.setattr(shared_prompts, "BLOCK", 8)
    torch.manual_seed(3)
    engine = engine_of((LLAMA_LIKE | OTHERS)[kind](), tmp_path)
    assert engine._shared == (kind != "sliding window")
    requests = requests_of_budgets(9, samples=3)
    stops = tuple(range(3))
    rows = engine.generate(requests, Sampling(stop_token_ids=stops))
    assert furthest(engine, requests, rows) < NEAR
    assert {row.finish_reason for row in rows} == {FinishReason.STOP, FinishReason.LENGTH}
    for request, row in zip(requests, rows, strict=True):
        room = min(request.max_new_tokens, CONTEXT - len(request.token_ids))
        stopped = row.token_ids[-1] in stops
        assert stopped or len(row.token_ids) == room
        assert (row.finish_reason == FinishReason.STOP) == stopped
        assert not set(row.token_ids[:-1]) & set(stops)


def test_the_size_of_a_batch_changes_roundings_only(tmp_path: Path) -> None:
    """Rows leave at different steps and take each other's places; none may take another's draw."""
    model = tiny_model(0, tied=True, vocab_size=VOCAB)
    requests = requests_of_budgets(6, samples=4, longest=20)
    sampling = Sampling(stop_token_ids=(0, 1))
    found = {
        rows: engine_of(model, tmp_path, rows).generate(requests, sampling) for rows in (1, 5, 64)
    }
    for rows in found.values():
        for row, alone in zip(rows, found[1], strict=True):
            assert row.token_ids == alone.token_ids
            assert row.logprobs == pytest.approx(alone.logprobs, abs=NEAR)
            assert row.finish_reason == alone.finish_reason
    again = engine_of(model, tmp_path).generate(requests, sampling)
    assert again == found[64], "the same batch has the same bits"


def test_tokens_come_as_often_as_they_are_likely(tmp_path: Path) -> None:
    """Second tokens too: the draw of a row must not lean on its earlier ones."""
    engine = engine_of(tiny_model(0, tied=True, vocab_size=VOCAB), tmp_path, rows=1000)
    prompt = [5, 9, 2]
    requests = [TurnRequest(f"{seed}/0", prompt, seed, 2) for seed in range(4000)]
    rows = engine.generate(requests, Sampling())
    first = torch.tensor([row.token_ids[0] for row in rows])
    likely = int(first.bincount().argmax())
    second = torch.tensor([row.token_ids[1] for row in rows])[first == likely]
    for drawn, context in ((first, prompt), (second, [*prompt, likely])):
        expected = engine.logits(context)[-1].double().softmax(-1) * len(drawn)
        counts = drawn.bincount(minlength=VOCAB)
        often = expected >= 5  # rarer tokens count as one
        got, due = (
            torch.cat([each[often].double(), each[~often].sum()[None].double()])
            for each in (counts, expected)
        )
        chi_square = ((got - due) ** 2 / due).sum()
        freedom = torch.tensor((len(due) - 1) / 2, dtype=torch.float64)
        assert torch.special.gammaincc(freedom, chi_square / 2) > 1e-3
