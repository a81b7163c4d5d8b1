"""The rollout engine without vLLM: batched decoding of a transformers model, a check of its
decoder, and the draw of one token per row. Axes: B rows, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import log2, sqrt
from random import Random

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlcore.cluster.host_settings import limit_onednn
from rlcore.cluster.progress import advance
from rlcore.engines.row_decoder import GROUPED, RowDecoder, may_share_prompts
from rlcore.engines.stop_strings import StopStrings
from rlcore.engines.types import (
    NOISE,
    EngineSpec,
    Generation,
    RolloutEngine,
    Sampling,
    TurnRequest,
    check_requests,
    check_token_ids,
)
from rlcore.engines.weight_check import read_update, require_verified, verify_handed
from rlcore.models.architectures import check_states, plain_attention
from rlcore.models.weight_digest import UNVERIFIED, DigestTap, WeightStamp, WeightUpdate
from rlcore.models.weight_files import checkpoint_shapes
from rlcore.models.weight_names import file_shapes, from_files
from schemas.errors import UserError
from schemas.outcomes import FinishReason


def processed_logprobs(logits_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the log-probs sampled from: logits / temperature, top_k, then top_p, renormalised.

    float32 [B, V]; dropped tokens are -inf. Temperature 0 gives the model's own log-probs, whose
    arg max is the greedy token. The order is vLLM's (``apply_top_k_top_p`` after temperature).
    """
    return _kept(logits_BV, sampling).log_softmax(-1)


def draw(
    logits_BV: torch.Tensor, sampling: Sampling, uniforms_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids [B] and their log-probs float32 [B], as ``choose`` and
    ``processed_logprobs`` have them; when greedy the likeliest, and the uniforms are not read."""
    if sampling.temperature == 0.0:
        logprobs_BV = processed_logprobs(logits_BV, sampling)
        chosen_B = logprobs_BV.argmax(-1)
        return chosen_B, logprobs_BV.gather(-1, chosen_B[:, None])[:, 0]
    probs_BV = _kept(logits_BV, sampling).softmax(-1)
    chosen_B = _inverse_cdf(probs_BV, uniforms_B)
    return chosen_B, probs_BV.gather(-1, chosen_B[:, None])[:, 0].log()


def choose(logprobs_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    """Return token ids [B]: the inverse CDF of each row at its uniform in [0, 1).

    One uniform per token, so a row's stream does not depend on the vocabulary or on its
    neighbours. float64 sums: in float32 a large vocabulary's tail would round away. A token of
    probability 0 is never chosen.
    """
    return _inverse_cdf(logprobs_BV.exp(), uniforms_B)


def _inverse_cdf(probs_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    cdf_BV = probs_BV.cumsum(-1, dtype=torch.float64)
    at_B1 = uniforms_B.double()[:, None] * cdf_BV[:, -1:]
    return torch.searchsorted(cdf_BV, at_B1, right=True)[:, 0]


def _kept(logits_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return logits / temperature, float32, -inf where top_k or top_p drops the token; the model's
    own at temperature 0."""
    logits_BV = logits_BV.float()
    if sampling.temperature == 0.0:
        return logits_BV
    if sampling.temperature != 1.0:
        logits_BV = logits_BV / sampling.temperature
    if 0 < sampling.top_k < logits_BV.shape[-1]:
        kth_B1 = logits_BV.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < kth_B1, -torch.inf)
    if sampling.top_p < 1.0:
        sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True)
        probs_BV = sorted_BV.softmax(-1)
        before_BV = probs_BV.cumsum(-1) - probs_BV  # mass ranked above the token
        dropped_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
        dropped_BV.scatter_(-1, order_BV, before_BV >= sampling.top_p)
        logits_BV = logits_BV.masked_fill(dropped_BV, -torch.inf)
    return logits_BV


PROMPTS, MORE = (5, 5, 2), 3  # tokens: two rows share a prompt and one has padding
FURTHEST = {torch.float32: 1e-3, torch.bfloat16: 0.04}  # of a logit, over the greatest logit


@torch.no_grad()
def is_right(model: PreTrainedModel, *, shared: bool = False) -> bool:
    """Return whether ``RowDecoder`` gives the logits of ``model``, within its
    dtype's rounding. The model holds noise in (-``NOISE``, ``NOISE``), and the same bits after
    it."""
    draw, vocabulary = Random(0), range(model.config.get_text_config().vocab_size)
    common, alone = (draw.choices(vocabulary, k=length) for length in PROMPTS[1:])
    rows = [common, list(common), alone]
    with _moderate(model):
        decoder = RowDecoder(model, rows, MORE, shared=shared)
        worst = 0.0
        for _ in range(MORE):
            more = draw.choices(vocabulary, k=len(rows))
            decoder.step(torch.tensor(more, device=model.device)[decoder.order])
            rows = [[*row, token] for row, token in zip(rows, more, strict=True)]
            for place, row in enumerate(decoder.order.tolist()):
                ids = torch.tensor([rows[row]], device=model.device)
                expected = model(input_ids=ids, use_cache=False).logits[0, -1].float()
                gap = (decoder.logits[place].float() - expected).abs().max() / expected.abs().max()
                worst = max(worst, float(gap.nan_to_num(torch.inf)))
    return worst <= FURTHEST[model.dtype]


def shares_prompts(model: PreTrainedModel) -> bool:
    """Return whether rows of ``model`` are decoded with the keys of equal prompts kept once, and
    let it attend by ``GROUPED`` where they are.

    Raises ``UserError`` where rows cannot be decoded from keys and values at all.
    """
    if may_share_prompts(model):
        plain = model.config._attn_implementation or "sdpa"
        model.set_attn_implementation(GROUPED)
        # A class may know no further arguments, have no numbers of its layers, or have heads of
        # several numbers: each row then has its prompt's keys, by the class's own attention.
        with suppress(AttributeError, LookupError, RuntimeError, TypeError):
            if is_right(model, shared=True):
                return True
        model.set_attn_implementation(plain)
    if not is_right(model):
        raise UserError(
            f"hardware.rollout.engine = 'transformers' does not decode {type(model).__name__} with"
            " the logits of a forward pass over the whole sequence; set it to vllm, or use another"
            " model"
        )
    return False


@contextmanager
def _moderate(model: PreTrainedModel) -> Iterator[None]:
    """Scale matrices of noise so that layers keep the size of what they are given, as trained ones
    do: a softmax of far greater scores would enlarge roundings. Powers of 2 lose no bit."""
    scaled = []
    for parameter in model.parameters():
        if parameter.dim() > 1:
            deviation = NOISE / sqrt(3)
            factor = 2.0 ** round(log2(1 / (deviation * sqrt(parameter.shape[-1]))))
            parameter.mul_(factor)
            scaled.append((parameter, factor))
    try:
        yield
    finally:
        for parameter, factor in scaled:
            parameter.div_(factor)


TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TransformersEngine(RolloutEngine):
    """``RolloutEngine`` on a transformers model.

    Prompts and rows are computed by transformers' own forward pass. How rows are continued is
    proven against the model when the engine is built.
    A row's random numbers come from its own generator, seeded by the request, so that the
    composition of the batch changes a row by float rounding only.
    """

    def __init__(self, spec: EngineSpec) -> None:
        """Build the model of ``spec.model_dir`` with noise for weights; see ``RolloutEngine``.

        Raises ``UserError`` when the directory holds no model, and as ``check_states``.
        """
        checkpoint_shapes(spec.model_dir)
        limit_onednn()
        self._spec = spec
        check_states(spec.model_dir)
        config = AutoConfig.from_pretrained(spec.model_dir)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            spec.model_dir,
            dtype=TORCH_DTYPES[spec.dtype],
            attn_implementation=plain_attention(config),
        )
        torch.nn.Module.to(model, torch.device(spec.device))
        self._model = model.eval()
        self._shapes = file_shapes(self._model)
        self.vocab_size: int = self._model.config.get_text_config().vocab_size
        generator = torch.Generator(spec.device).manual_seed(spec.seed)
        for parameter in self._model.requires_grad_(False).parameters():
            parameter.uniform_(-NOISE, NOISE, generator=generator)
        self._shared = shares_prompts(self._model)
        self._strings = StopStrings(spec.model_dir)
        self._stamp = UNVERIFIED

    @torch.inference_mode()
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
            ids_BT = pad_sequence([torch.tensor(list(ids)) for ids in batch], batch_first=True)
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
        state = read_update(update.path, self._shapes)
        self._stamp, tap, own = UNVERIFIED, DigestTap(), self._model.state_dict()
        for name, tensor in from_files(self._model, dict(tap.through(state.items()))).items():
            own[name].copy_(tensor)
        verify_handed(tap.digests, update.tensors)
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
        device, longest = self._spec.device, self._spec.max_model_len
        limits = [min(each.max_new_tokens, longest - len(each.token_ids)) for each in requests]
        most = max(limits)
        prompts = [request.token_ids for request in requests]
        rows = RowDecoder(self._model, prompts, most, shared=self._shared)
        uniforms_TB = _uniforms(requests, sampling).T.contiguous().to(device)
        tokens: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        stopped: set[int] = set()
        for step in range(most):
            order = rows.order.tolist()  # the request of each row
            chosen_B, taken_B = draw(rows.logits, sampling, uniforms_TB[step, order])
            for at, token, logprob in zip(order, chosen_B.tolist(), taken_B.tolist(), strict=True):
                tokens[at].append(token)
                logprobs[at].append(logprob)
            complete = self._strings.complete([tokens[at] for at in order], sampling.stop)
            for at, ends in zip(order, complete, strict=True):
                if ends or tokens[at][-1] in sampling.stop_token_ids:
                    stopped.add(at)
            alive_B = torch.tensor([at not in stopped and limits[at] > step + 1 for at in order])
            if not alive_B.any():
                break
            if not alive_B.all():
                chosen_B = chosen_B[rows.keep(alive_B).to(device)]
            rows.step(chosen_B)
        reasons = [
            FinishReason.STOP if at in stopped else FinishReason.LENGTH
            for at in range(len(requests))
        ]
        return [
            Generation(*each, self._stamp) for each in zip(tokens, logprobs, reasons, strict=True)
        ]


def _uniforms(requests: list[TurnRequest], sampling: Sampling) -> torch.Tensor:
    """Return float64 [B, longest budget] in [0, 1): row i drawn by a generator with its own seed.

    Drawn on CPU and always for the whole budget, so a row's stream is the same on every device and
    in every batch. Zeros when greedy.
    """
    columns = max(request.max_new_tokens for request in requests)
    if sampling.temperature == 0.0:
        return torch.zeros(len(requests), columns, dtype=torch.float64)
    generator = torch.Generator()
    rows = [
        torch.rand(columns, dtype=torch.float64, generator=generator.manual_seed(request.seed))
        for request in requests
    ]
    return torch.stack(rows)
