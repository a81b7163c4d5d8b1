"""Whether a model keeps packed documents apart, and whether one of an architecture that nobody
has taken through the pipeline can be trained: measured on the model itself, once, at load.

Positions that restart within a row tell most architectures where a document begins. Others ignore
them: a recurrent or convolutional state continues across the boundary (LFM2, Falcon-H1, Qwen3.5),
or attention sees the whole row (OPT, Falcon). No configuration key tells which, so two short
documents are packed and compared with each alone.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from rlcore.learner.attention import AUTO, choose_attention, flash_problem
from rlcore.learner.model import TokenModel, load_model, write_hf_directory
from rlcore.learner.spec import LearnerSpec
from rlcore.models.architectures import EAGER, SDPA, plain_attention, takes_masks
from rlcore.models.packing import MicroBatch, Sequences, pack
from rlcore.models.value_model import TokenValueModel
from rlcore.models.weight_names import empty_model, file_state, from_files
from schemas.errors import UserError

LISTED = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Phi3ForCausalLM",
    "GPTNeoXForCausalLM",
    "GPT2LMHeadModel",
    "Olmo2ForCausalLM",
    "GraniteForCausalLM",
    "SmolLM3ForCausalLM",
    "Qwen3NextForCausalLM",
    "FalconH1ForCausalLM",
    "Lfm2ForCausalLM",
)


# Nats. Rounding is smaller, also times ROUNDING_FACTOR; the smallest leak observed is .1.
FLOORS = {"float32": 1e-4, "bfloat16": 0.05}
ROUNDING_FACTOR = 5.0
DOCUMENTS = (11, 7)  # tokens; short, as a leak shows best right after the boundary
PAIRS = 2
ROW_TOKENS = sum(DOCUMENTS)


@dataclass(frozen=True, slots=True)
class PackingCheck:
    """``leak``: the largest change of a token's log-prob by packing, in nats; for a value model, of
    the score of a head of unit scale. ``limit``: the change that rounding can explain.
    ``declined``: a sentence on why "auto" took sdpa, where it tried another attention.
    ``shares``: whether sequences that begin alike can share the tokens they have in common."""

    architecture: str
    leak: float
    limit: float
    declined: str = ""
    shares: bool = False

    @property
    def leaks(self) -> bool:
        """Whether the outputs of a document depend on its neighbours in the row."""
        return not self.leak <= self.limit  # NaN is a leak

    @property
    def warning(self) -> str | None:
        """Why each row holds one document, and why "auto" took sdpa after all; None where documents
        are packed and it did not have to."""
        said = [self.declined] if self.declined else []
        if self.leaks:
            said.append(
                f"architecture {self.architecture} does not keep packed documents apart (one moves"
                f" its neighbour's outputs by up to {self.leak:.2g}, rounding by at most"
                f" {self.limit:.2g}), so each row holds one document, and the rest of it is padding"
                " (perf/padded_tokens and perf/trained_tokens)"
            )
        return "; ".join(said) or None


def resolve_attention(
    model: TokenModel, spec: LearnerSpec, device: str
) -> tuple[LearnerSpec, PackingCheck]:
    """Return ``spec`` with the attention that ``model`` computes with, and the effect of packing.

    With "auto" that is what ``choose_attention`` says, where the architecture takes it and packed
    documents stay apart, and otherwise sdpa. Errors as ``check_packing``'s.
    """
    if spec.attn_implementation != AUTO:
        return spec, check_packing(model, spec, device)
    problem = flash_problem() if device == "cuda" else None
    chosen = choose_attention(AUTO, device=device, dtype=spec.dtype, problem=problem).name
    declined = ""
    if chosen != SDPA:
        taken = replace(spec, attn_implementation=chosen)
        tried = _tried(model, taken, device)
        if isinstance(tried, PackingCheck):
            return taken, tried
        _attend_with(model, plain_attention(model.lm.config))
        declined = (
            f"hardware.learner.attention = 'auto' took sdpa, as {chosen} does not serve this model:"
            f" {tried}"
        )
    plain = replace(spec, attn_implementation=SDPA)
    return plain, replace(check_packing(model, plain, device), declined=declined)


def _tried(model: TokenModel, spec: LearnerSpec, device: str) -> PackingCheck | str:
    """Switch ``model``, which computes with sdpa, to ``spec``'s attention; return the effect of
    packing, or why it is of no use."""
    try:
        _attend_with(model, spec.attn_implementation)
        packing = check_packing(model, spec, device)
    except UserError:  # of the check: with sdpa each row is a separate batch entry
        return "documents change with what lies in other rows"
    except (ImportError, RuntimeError, ValueError) as error:
        # flash-attn knows few architectures and head sizes; sdpa nearly all
        return " ".join(str(error).split())
    if packing.leaks:
        return f"packed documents move each other by up to {packing.leak:.2g}"
    return packing


def _attend_with(model: TokenModel, name: str) -> None:
    """Switch ``model`` and its reference; ``ValueError`` where an architecture cannot."""
    for each in models_of(model):
        each.lm.set_attn_implementation(name)
        if each.lm.config._attn_implementation != name:
            raise ValueError(f"{type(each.lm).__name__} does not switch to {name}")


def check_packing(model: TokenModel, spec: LearnerSpec, device: str) -> PackingCheck:
    """Return the effect of packing on ``model``, or on its reference where that is larger.

    The limit is the larger of ``FLOORS`` and five times the gap of one document in two row lengths.
    Raises ``UserError`` for an architecture whose output changes with what follows a document, or
    from call to call: its batches cannot be padded either.
    """
    return worst([_check(each, spec, device) for each in models_of(model)])


def models_of(model: TokenModel) -> list[TokenModel]:
    """Return ``model``, and its reference where that is another model."""
    if isinstance(model, TokenValueModel) or model.reference is None:
        return [model]
    return [model] if model.reference.lm is model.lm else [model, model.reference]


def worst(checks: list[PackingCheck]) -> PackingCheck:
    """Return the check whose leak exceeds its limit most; it shares where all do."""
    found = max(checks, key=lambda check: check.leak / check.limit)
    return replace(found, shares=all(check.shares for check in checks))


def _check(model: TokenModel, spec: LearnerSpec, device: str) -> PackingCheck:
    documents = _documents(model)
    alone = outputs_alone(model, device)
    # With a row as long as the packed one in the batch, the documents are padded to its width.
    longest = np.concatenate(documents[: len(DOCUMENTS)])
    whole = _whole([longest, *documents])
    padded = _read(model, whole, device, ROW_TOKENS, 1 + len(documents), one_per_row=True)
    padded = padded[len(longest) :]
    # Flash attention separates the documents of a single row, and not those of several rows.
    flash = spec.attn_implementation.startswith("flash") and spec.row_tokens is None
    packed = _read(model, _whole(documents), device, ROW_TOKENS, 1 if flash else PAIRS)
    scale = float(np.sqrt(np.mean(alone**2))) if isinstance(model, TokenValueModel) else 1.0
    padding, packing = np.abs(padded - alone) / scale, np.abs(packed - alone) / scale
    architecture, floor = type(model.lm).__name__, FLOORS[spec.dtype]
    if padding.mean() > floor:  # bf16 rounding changes a few tokens, not the mean
        raise UserError(
            f"architecture {architecture} changes its output for a document by"
            f" {padding.mean():.2g} on average when the row continues after it, so it is not causal"
            " (or not deterministic) and the learner can neither pack nor pad its batches; use a"
            " causal language model"
        )
    limit = max(floor, ROUNDING_FACTOR * float(padding.max()))
    check = PackingCheck(architecture, float(packing.max()), limit)
    if check.leaks or spec.attn_implementation != SDPA or not takes_masks(model.lm):
        return check
    return replace(check, shares=_sharing_error(model, device) / scale <= limit)


def _sharing_error(model: TokenModel, device: str) -> float:
    """Return the largest change of an answer's outputs where it shares the tokens of its prompt."""
    prompt, *answers = _documents(model)
    ids = [np.concatenate([prompt, answer]) for answer in answers]
    sequences = Sequences(ids, [np.arange(len(each)) >= len(prompt) for each in ids])
    longest = int(sequences.lengths.max())
    alone = _read(model, sequences, device, longest, one_per_row=True)
    shared = _read(model, sequences, device, 4 * longest, share_prompts=True)
    return float(np.abs(shared - alone).max())


def outputs_alone(model: TokenModel, device: str) -> np.ndarray:
    """Return [tokens] float64: the outputs of the documents, each in a separate pass."""
    return np.concatenate(
        [
            _read(model, _whole([ids]), device, ROW_TOKENS, one_per_row=True)
            for ids in _documents(model)
        ]
    )


def _read(
    model: TokenModel,
    sequences: Sequences,
    device: str,
    row_tokens: int,
    rows: int = 1,
    *,
    one_per_row: bool = False,
    share_prompts: bool = False,
) -> np.ndarray:
    """Return [tokens] float64: the outputs of ``sequences`` in passes of so many rows; 0 on tokens
    that are no targets."""
    flat = np.zeros(sequences.num_tokens)
    for batch in pack(
        sequences,
        micro_batch_tokens=rows * row_tokens,
        row_tokens=row_tokens,
        one_per_row=one_per_row,
        share_prompts=share_prompts,
    ):
        flat[batch.sources] = read_outputs(model, batch, device)
    return flat


def _documents(model: TokenModel) -> list[np.ndarray]:
    """Return ``PAIRS`` documents of each length in ``DOCUMENTS``: random tokens, fixed seed."""
    generator = np.random.default_rng(0)
    size = model.lm.config.get_text_config().vocab_size
    return [generator.integers(0, size, n) for _ in range(PAIRS) for n in DOCUMENTS]


def _whole(documents: list[np.ndarray]) -> Sequences:
    return Sequences(documents, [np.arange(len(ids)) > 0 for ids in documents])


def example_batch(model: TokenModel) -> MicroBatch:
    """Return rows of two short documents each, every token but the first of them a target."""
    documents = _whole(_documents(model))
    (batch,) = pack(documents, micro_batch_tokens=PAIRS * ROW_TOKENS, row_tokens=ROW_TOKENS)
    return batch


@torch.no_grad()
def read_outputs(model: TokenModel, batch: MicroBatch, device: str) -> np.ndarray:
    """Return [targets] float64: log-probs in nats, or scores of a fixed head on a value model.

    A value model's own head cannot be used: a new one returns 0 everywhere.
    """
    names = ("input_ids", "position_ids", "predictors", "documents", "continued")
    arrays = {name: getattr(batch, name) for name in names}
    inputs = {n: torch.from_numpy(a).to(device) for n, a in arrays.items() if a is not None}
    if isinstance(model, TokenValueModel):
        hidden = model.hidden(**inputs).double().cpu().numpy()
        return hidden @ np.random.default_rng(1).normal(size=hidden.shape[-1])
    logprobs, *_ = model(**inputs, target_ids=torch.from_numpy(batch.target_ids).to(device))
    return logprobs.double().cpu().numpy()


SAME = 1e-5  # nats: the same weights in the same passes


def try_architecture(directory: Path) -> None:
    """Load the model of ``directory``, write it as the learner does, load that, and compare their
    log-probs, in float32 on CPU; nothing for a class that is listed.

    Raises ``UserError`` naming the class: where its logits or its attention are not those of a
    causal language model (``load_model``, ``check_packing``), or it is another model once written.
    """
    kind = type(empty_model(directory))
    name = kind.__name__
    if name in LISTED:
        return
    attention = SDPA if kind._supports_sdpa else EAGER
    with torch.random.fork_rng(devices=[]), TemporaryDirectory(prefix="rl-trial-") as folder:
        spec = LearnerSpec(str(directory), trainable=False, attn_implementation=attention)
        model = load_model(spec, "cpu")
        check_packing(model, spec, "cpu")
        before, state = outputs_alone(model, "cpu"), file_state(model.lm)
        held = model.lm.state_dict()
        same = all(torch.equal(held[n], t) for n, t in from_files(model.lm, state).items())
        write_hf_directory(
            Path(folder), source=directory, state=state, dtype=spec.dtype, architecture=name
        )
        again = load_model(replace(spec, model_dir=folder), "cpu")
        moved = float(np.abs(outputs_alone(again, "cpu") - before).max())
    if not (same and moved <= SAME):
        raise UserError(
            f"model.path = '{directory}' is a {name}, which once written and loaded again gives"
            f" other log-probs (by {moved:.2g} nats), so its checkpoints and exports would be"
            " another model; use an architecture of docs/reference/architectures.md"
        )
