import pytest
import torch

from rlcore.models import logprobs
from rlcore.models.logprobs import TokenLogprobModel, scores_of_logits


def test_scores_at_a_temperature():
    """Log-probs and entropy of softmax(logits / T), in fp32 whatever the model's dtype."""
    logits = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.bfloat16)
    found, entropy, _ = scores_of_logits(logits, torch.tensor([2]), 0.5, entropy_grad=False)
    distribution = torch.softmax(torch.tensor([2.0, 4.0, 8.0]), 0)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[0], distribution[2].log())
    torch.testing.assert_close(entropy[0], -(distribution * distribution.log()).sum())


def test_entropy_has_a_gradient_only_when_asked():
    for wanted, expected in [(None, 0), (False, 1), (True, 1)]:
        logits = torch.randn(1, 5, requires_grad=True)
        _, entropy, _ = scores_of_logits(logits, torch.tensor([0]), entropy_grad=wanted)
        assert len(entropy) == expected
        assert entropy.requires_grad is bool(wanted)


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_large_vocabulary_changes_nothing(temperature, hooked, monkeypatch):
    """In blocks, or in chunks where hooks want the head called, big vocabularies give the small
    one's log-probs, entropies and gradients."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
    )
    model = TokenLogprobModel(Qwen2ForCausalLM(config))
    seen = []
    if hooked:
        head = model.lm.get_output_embeddings()
        assert head is not None
        head.register_forward_hook(lambda *_: seen.append(_))
    ids = torch.randint(0, 50, (2, 20))
    results = []
    for limit in (10**9, 50 * 7):
        monkeypatch.setattr(logprobs, "CHUNK_LOGITS", limit)
        monkeypatch.setattr(logprobs, "BLOCK_LOGITS", limit)
        model.zero_grad()
        found, entropy, _ = model(
            input_ids=ids,
            position_ids=torch.arange(20).repeat(2, 1),
            predictors=torch.arange(39),
            target_ids=ids.flatten()[1:],
            temperature=temperature,
            entropy_grad=True,
        )
        (found.sum() + entropy.square().sum()).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        results.append([found.detach(), entropy.detach(), *(g.clone() for g in gradients)])
        with torch.no_grad():
            again, *_ = model(
                input_ids=ids,
                position_ids=torch.arange(20).repeat(2, 1),
                predictors=torch.arange(39),
                target_ids=ids.flatten()[1:],
                temperature=temperature,
            )
        torch.testing.assert_close(again, found.detach(), rtol=0, atol=1e-5)
    assert len(seen) == (2 + 3 * 6 if hooked else 0)  # whole twice; chunks, again, and scored
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-5)
