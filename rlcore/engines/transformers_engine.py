"""The rollout engine without vLLM: batched decoding of a transformers model."""

from collections.abc import Iterator, Sequence

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlcore.cluster.progress import advance
from rlcore.engines.row_decoder import GROUPED, RowDecoder
from rlcore.engines.sampling import choose, processed_logprobs
from rlcore.engines.types import (
    NOISE,
    EngineSpec,
    Generation,
    Sampling,
    TurnRequest,
    WholeBatches,
    check_requests,
    check_token_ids,
)
from rlcore.models.tree_mask import takes_masks
from rlcore.onednn import limit_onednn
from rlcore.weights.check import read_update, require_verified, verify_handed
from rlcore.weights.digest import SumTap, canonical_names
from rlcore.weights.files import checkpoint_shapes
from rlcore.weights.stamp import UNVERIFIED, WeightStamp, WeightUpdate
from schemas.outcomes import FinishReason

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TransformersEngine(WholeBatches):
    """``RolloutEngine`` on a transformers model.

    A row's random numbers come from its own generator, seeded by the request, so that the
    composition of the batch changes a row by float rounding only.
    """

    def __init__(self, spec: EngineSpec) -> None:
        """Build the model of ``spec.model_dir`` with noise for weights; see ``RolloutEngine``.

        Raises ``UserError`` when the directory holds no model.
        """
        checkpoint_shapes(spec.model_dir)
        limit_onednn()
        self._spec = spec
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            spec.model_dir, dtype=TORCH_DTYPES[spec.dtype], attn_implementation="sdpa"
        )
        torch.nn.Module.to(model, torch.device(spec.device))
        self._model = model.eval()
        self._masks = takes_masks(model)
        if self._masks:
            model.set_attn_implementation(GROUPED)
        self._names = canonical_names(self._model)
        self.vocab_size: int = self._model.config.get_text_config().vocab_size
        generator = torch.Generator(spec.device).manual_seed(spec.seed)
        for parameter in self._model.requires_grad_(False).parameters():
            parameter.uniform_(-NOISE, NOISE, generator=generator)
        self._stamp = UNVERIFIED

    def begin(self) -> None:
        """There is no cache between calls."""

    @torch.no_grad()
    def generate(self, requests: Sequence[TurnRequest], sampling: Sampling) -> list[Generation]:
        """Return one continuation per request, in order; see ``RolloutEngine.generate``."""
        require_verified(self._stamp)
        check_requests(requests, self._spec.max_model_len, self.vocab_size)
        results: dict[int, Generation] = {}
        for rows in self._batches([request.token_ids for request in requests]):
            decoded = self._decode([requests[row] for row in rows], sampling)
            results.update(zip(rows, decoded, strict=True))
        return [results[row] for row in range(len(requests))]

    @torch.no_grad()
    def probe(self, token_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log p(token t | tokens < t), t >= 1, at temperature 1; see ``RolloutEngine``."""
        require_verified(self._stamp)
        for row, ids in enumerate(token_ids):
            check_token_ids(
                f"probe's token_ids[{row}]", ids, self._spec.max_model_len, self.vocab_size
            )
        results: dict[int, list[float]] = {}
        for rows in self._batches(token_ids):
            batch = [token_ids[row] for row in rows]
            # Padded on the right: attention is causal, so the padding needs no mask.
            ids_BT = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.long)
            for row, ids in enumerate(batch):
                ids_BT[row, : len(ids)] = torch.tensor(list(ids))
            ids_BT = ids_BT.to(self._spec.device)
            logits_BTV = self._model(input_ids=ids_BT, use_cache=False).logits.float()
            advance()
            logprobs_BT = logits_BTV[:, :-1].log_softmax(-1).gather(-1, ids_BT[:, 1:, None])[..., 0]
            for row, ids, values in zip(rows, batch, logprobs_BT.tolist(), strict=True):
                results[row] = values[: len(ids) - 1]
        return [results[row] for row in range(len(token_ids))]

    @torch.no_grad()
    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the logits behind each token of a sequence, float32 [tokens, vocabulary]."""
        require_verified(self._stamp)
        ids_1T = torch.tensor([list(token_ids)], device=self._spec.device)
        return self._model(input_ids=ids_1T, use_cache=False).logits[0].float()

    @torch.no_grad()
    def load_weights(self, update: WeightUpdate) -> WeightStamp:
        """Copy a state file into the model; see ``RolloutEngine``. There is no cache to drop."""
        own = self._model.state_dict()
        expected = {name: tuple(own[name].shape) for name in self._names}
        state = read_update(update.path, expected)
        self._stamp, tap = UNVERIFIED, SumTap()
        for name, tensor in tap.through(state.items()):
            own[name].copy_(tensor)
        verify_handed(tap.digests, update.sums)
        self._stamp = update.stamp
        return self._stamp

    def stamp(self) -> WeightStamp:
        """Return the stamp of the weights sampled from."""
        return self._stamp

    def close(self) -> None:
        """Nothing to free."""

    def _batches(self, prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Yield row numbers in batches of similar length, longest first, to keep padding small."""
        order = sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))
        for start in range(0, len(order), self._spec.max_num_seqs):
            yield order[start : start + self._spec.max_num_seqs]

    def _decode(self, requests: list[TurnRequest], sampling: Sampling) -> list[Generation]:
        """Decode one batch; finished rows leave it at once. B rows, T tokens sampled."""
        limits_B = torch.tensor(
            [
                min(request.max_new_tokens, self._spec.max_model_len - len(request.token_ids))
                for request in requests
            ]
        )
        most, stops = int(limits_B.max()), torch.tensor(sampling.stop_token_ids).long()
        prompts = [request.token_ids for request in requests]
        rows = RowDecoder(self._model, prompts, most, masks=self._masks)
        uniforms_BT = _uniforms(requests, sampling)[rows.order]
        tokens_BT = torch.zeros(len(requests), most, dtype=torch.long)
        logprobs_BT = torch.zeros(len(requests), most)
        lengths_B, stopped_B = limits_B.clone(), torch.zeros(len(requests), dtype=torch.bool)
        for step in range(most):
            at_B = rows.order
            chosen_B, taken_B = _draw(rows.logits, sampling, uniforms_BT[:, step : step + 1])
            tokens_BT[at_B, step], logprobs_BT[at_B, step] = chosen_B.cpu(), taken_B.cpu()
            ends_B = torch.isin(chosen_B.cpu(), stops)
            stopped_B[at_B[ends_B]], lengths_B[at_B[ends_B]] = True, step + 1
            alive_B = ~ends_B & (limits_B[at_B] > step + 1)
            if not alive_B.any():
                break
            if not alive_B.all():
                order_B = rows.keep(alive_B)
                uniforms_BT, chosen_B = uniforms_BT[order_B], chosen_B[order_B.to(chosen_B.device)]
            rows.step(chosen_B)
        return [
            Generation(
                tokens[:length],
                logprobs[:length],
                FinishReason.STOP if stop else FinishReason.LENGTH,
                self._stamp,
            )
            for tokens, logprobs, length, stop in zip(
                tokens_BT.tolist(),
                logprobs_BT.tolist(),
                lengths_B.tolist(),
                stopped_B.tolist(),
                strict=True,
            )
        ]


def _draw(
    logits_BV: torch.Tensor, sampling: Sampling, uniforms_B1: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids [B] and their log-probs [B]; no uniforms are needed when greedy."""
    logprobs_BV = processed_logprobs(logits_BV, sampling)
    if sampling.temperature == 0.0:
        chosen_B = logprobs_BV.argmax(-1)
    else:
        chosen_B = choose(logprobs_BV, uniforms_B1[:, 0].to(logits_BV.device))
    return chosen_B, logprobs_BV.gather(-1, chosen_B[:, None])[:, 0]


def _uniforms(requests: list[TurnRequest], sampling: Sampling) -> torch.Tensor:
    """Return float64 [B, longest budget] in [0, 1): row i drawn by a generator of its own seed.

    Drawn on CPU and always for the whole budget, so a row's stream is the same on every device and
    in every batch. Empty columns when greedy.
    """
    columns = max(request.max_new_tokens for request in requests)
    columns = 0 if sampling.temperature == 0.0 else columns
    generator = torch.Generator()
    rows = [
        torch.rand(columns, dtype=torch.float64, generator=generator.manual_seed(request.seed))
        for request in requests
    ]
    return torch.stack(rows)
