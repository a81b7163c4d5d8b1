"""One rank of the learner: scoring, optimizer steps, versioned updates, publishing, checkpoints.

Every method is collective: with several ranks, all call it in the same order, each with its own
share of the sequences. Losses and metrics are normalised by the counts of all shares together.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from rlcore.learner.average import WeightAverage
from rlcore.learner.engine import (
    FrozenEngine,
    TrainEngine,
    connect,
    make_deterministic,
    pick_device,
)
from rlcore.learner.model import load_model
from rlcore.learner.packing_check import resolve_attention, worst
from rlcore.learner.passes import Accumulated, Passes, StepReport, accumulate, apply, over_steps
from rlcore.learner.sequence_parallel import SequenceParallel
from rlcore.learner.spec import (
    LearnerSpec,
    Term,
    TokenScores,
    UpdateRequest,
    UpdateResult,
    VersionConflict,
)
from rlcore.learner.training_state import Versions, average_file, load_state, save_state
from rlcore.learner.utilisation import peak_flops, peak_memory, training_cost
from rlcore.learner.weights import LearnerWeights
from rlcore.models.adapter import adapter_off
from rlcore.models.packing import MicroBatch, Sequences
from rlcore.models.weight_digest import WeightStamp, WeightUpdate
from schemas.errors import UserError


class Learner:
    """``spec`` on rank ``rank`` of ``world_size``, which meet at ``rendezvous``.

    That is an ``init_method`` of ``torch.distributed``; a lone rank needs none. A model that does
    not keep packed documents apart gets rows of one document (``packing_warning``). Raises
    ``UserError`` when device, model or process group do not fit ``spec``, or the model cannot be
    padded.
    """

    def __init__(
        self, spec: LearnerSpec, rank: int = 0, world_size: int = 1, rendezvous: str = ""
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.device = pick_device(spec.device)
        make_deterministic(spec, self.device)
        model = load_model(spec, self.device)
        self._architecture = type(model.lm).__name__
        cost = training_cost(model.lm)  # before ZeRO-3 splits the weights
        spec, packing = resolve_attention(model, spec, self.device)
        self.spec, parallel = spec, None
        if spec.sequence_parallel > 1:
            connect(spec, self.device, rank, world_size, rendezvous)
            parallel = SequenceParallel(
                spec.sequence_parallel, rank, world_size, spec.attn_implementation
            )
            parallel.divide(model, spec, self.device)
        self._trained: TrainEngine | None = None
        if spec.trainable or (spec.zero_stage == 3 and world_size > 1):
            self._engine = TrainEngine(
                model,
                spec,
                device=self.device,
                rank=rank,
                world_size=world_size,
                rendezvous=rendezvous,
            )
            self._trained = self._engine if spec.trainable else None
        else:
            self._engine = FrozenEngine(model, self.device, on_host=spec.on_host)
        # On different kinds of CPUs ranks could round differently, and so decide differently.
        packing = worst(self._engine.exchange(packing))
        self._warning = packing.warning
        self._require_one_attention()
        self._average: WeightAverage | None = None
        if spec.ema is not None and spec.trainable:
            self._average = WeightAverage(self._engine.lm, spec.ema)
        self._passes = Passes(self._engine, spec, self.device, packing, cost, parallel)
        self._weights = LearnerWeights(self._engine, spec, rank)
        self._versions = Versions()
        self._held: tuple[int, str, Accumulated] | None = None  # gradients, and of which update

    def packing_warning(self) -> str | None:
        """``PackingCheck.warning``, of all ranks."""
        return self._warning

    def logprobs(
        self,
        sequences: Sequences,
        temperature: float = 1.0,
        *,
        targets: str = "all",
        entropy: bool = False,
        full_kl: bool = False,
        reference: bool = False,
    ) -> TokenScores:
        """Return log-probs (nats) of this rank's ``sequences``; entropies and KLs on request.

        ``targets``: "all" tokens with a predecessor, or "loss_mask" (the head then runs on those
        only); other places are 0. ``full_kl``: exact KL(policy || reference) of each token's
        distribution, at ``temperature``, of a learner with ``reference_dir``. ``reference``: of the
        model without its adapter.
        """
        assert self.spec.head == "lm", "a value model has no log-probs"

        def read(batch: MicroBatch) -> list[torch.Tensor]:
            found = self._passes.outputs(
                batch,
                temperature=temperature,
                entropy_grad=False if entropy else None,
                full_kl=full_kl,
            )
            return [found.logprobs, *[found.entropy] * entropy, *[found.kl] * full_kl]

        with self._scoring(), adapter_off(self._engine.lm) if reference else nullcontext():
            logprobs, *more = self._passes.read(sequences, targets, 1 + entropy + full_kl, read)
        return TokenScores(
            logprobs=logprobs,
            entropies=more[0] if entropy else [],
            kls=more[-1] if full_kl else [],
        )

    def values(self, sequences: Sequences, *, targets: str = "loss_mask") -> list[np.ndarray]:
        """Return a value model's scores of this rank's ``sequences``, aligned with ``token_ids``.

        ``targets``: "loss_mask", the value of the state *before* each such token (as GAE needs it);
        or "last", the score of the whole text, read at its last token and stored there. Other
        places are 0.
        """
        assert self.spec.head == "value", "a language model has no values"
        with self._scoring():
            (values,) = self._passes.read(
                sequences, targets, 1, lambda batch: [self._passes.outputs(batch).values]
            )
        return values

    def step(self, terms: Sequence[Term], lr: float) -> dict[str, float]:
        """Make one optimizer step on the sum of ``terms`` over all ranks; return global metrics.

        Raises ``UserError``, on every rank, when any rank's share cannot be packed or lacks a
        field, or a term has no token to train on.
        """
        self._require_no_gradients()
        return self._step(terms, lr).flat()

    def accumulate(self, request: UpdateRequest) -> TokenScores | None:
        """Sum the gradients of ``request``, which has one mini-batch, for ``update`` to apply.

        Return log-probs (nats) and entropies of its first term's sequences, as the passes computed
        them; NaN on tokens that it does not train on. None where the update was made already. Only
        ``update`` with ``request``, scoring and publishing may follow; others raise
        ``VersionConflict``.
        """
        (terms,) = request.mini_batches
        assert not request.own_logprobs, "of a single step nothing reads the old log-probs"
        if self._versions.recorded(request) is not None:
            return None
        held = self._held_for(request)
        if held is None:
            # Summed once: a repeated request finds the gradients, and must not add to them.
            held = accumulate(self._training(), self._passes, self._passes.plan(terms))
            self._held = (request.version, request.batch_digest, held)
        cuts = np.cumsum(terms[0].sequences.lengths)[:-1]
        rows = [np.split(flat, cuts) if len(flat) else [] for flat in held.scores()]
        return TokenScores(logprobs=rows[0], entropies=rows[1], kls=[])

    def update(self, request: UpdateRequest) -> UpdateResult:
        """Step once per mini-batch and increment the weight version, as a compare-and-set.

        For a repeated request of the update that led to the current version (same version and batch
        digest), return its recorded result. Any other version raises ``VersionConflict``; so does
        every update after one that failed between steps, until ``load``.
        """
        # A caller that lost the answer asks again; the weights must not be stepped twice.
        if (recorded := self._versions.recorded(request)) is not None:
            return recorded
        began, mini_batches, old_logprobs = perf_counter(), request.mini_batches, []
        if request.own_logprobs:
            # All before the first step, which changes the weights that the batch was sampled from.
            old_logprobs = [
                self._passes.rescore(self._passes.plan(terms).terms[0]) for terms in mini_batches
            ]
            mini_batches = [
                [_measured_against(old, terms[0]), *terms[1:]]
                for old, terms in zip(old_logprobs, mini_batches, strict=True)
            ]
        # Given up in any case: after a step that fails, ``load`` must not find gradients.
        held, self._held = self._held_for(request), None
        with self._versions.stepping():
            if held is not None:
                reports = [self._apply(held, request.lrs[0])]
            else:
                reports = [
                    self._step(terms, lr)
                    for terms, lr in zip(mini_batches, request.lrs, strict=True)
                ]
        result = UpdateResult(
            version=self._versions.held + 1,
            metrics=over_steps(reports).flat(),
            steps=[report.flat() for report in reports],
            old_logprobs=old_logprobs,
            seconds=perf_counter() - began,
            peak_bytes=peak_memory(self.device),
        )
        self._versions.record(request, result)
        self._yield_memory()
        return result

    def peak_flops(self) -> float | None:
        """Return the FLOP/s that this rank's device can reach, None where that is not known."""
        return peak_flops(self.device)

    def stamp(self) -> WeightStamp:
        """Return version and digest of the current weights. Hashes them once per change."""
        return WeightStamp(self._versions.held, self._weights.digest())

    def publish(self, kept: int = 1) -> WeightUpdate:
        """Write the canonical HF state into shared memory of rank 0, where the last ``kept`` that
        were published are readable."""
        path, tensors = self._weights.share(kept)
        self._yield_memory()
        return WeightUpdate(self.stamp(), path, tensors)

    def swap_average(self) -> None:
        """Hold the average of the weights in their place; or, where it is held, the weights again.

        Meanwhile they may be scored with, published and exported; their stamp has the average's
        digest.
        """
        assert self._average is not None, "spec.ema is set"
        self._require_no_gradients()
        self._average.swap()
        self._weights.changed()

    def export_hf(self, directory: str | Path) -> None:
        """Write a Hugging Face directory (rank 0): weights, config, tokenizer, chat template.

        An adapter is merged into the weights, and written beside ``directory``, too.
        """
        self._weights.export(Path(directory), architecture=self._architecture)

    def save(self, directory: str | Path) -> None:
        """Write the complete training state: shards, RNG, version, last update.

        Safetensors and JSON, of which each rank has its own; ``directory`` must be one that every
        rank reaches. Not atomic; the caller publishes it.
        """
        save_state(self._training(), self._versions, Path(directory))
        if self._average is not None and self.rank == 0:  # all ranks have the same
            self._average.save(average_file(Path(directory)))

    def load(self, directory: str | Path) -> None:
        """Continue from ``save``, bit for bit, in any process, whatever ranks and stage wrote it.

        Raises ``UserError`` when the checkpoint is missing, damaged, or of another model.
        """
        self._require_no_gradients()  # the next step would add them to its own
        with self._versions.stepping():  # a load that fails leaves weights of no version
            loaded = load_state(self._training(), Path(directory))
        if self._average is not None:
            self._average.load(average_file(Path(directory)))
        self._versions = loaded
        self._weights.changed()
        self._yield_memory()  # of a step that was undone

    def close(self) -> None:
        """Free the model; the process and its group stay, for the next learner."""
        self._engine.close()
        del self._engine, self._trained, self._passes, self._weights, self._held, self._average
        if self.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()  # cached memory is not available to other processes

    def _require_one_attention(self) -> None:
        """Raise ``UserError`` where "auto" means different kernels on different ranks: their rows
        would be cut differently."""
        names = self._engine.exchange(self.spec.attn_implementation)
        if len(set(names)) > 1:
            raise UserError(
                f"hardware.learner.attention = 'auto' means {', '.join(names)} on ranks 0 to"
                f" {len(names) - 1}, which must be one; install flash_attn on all machines alike or"
                " set it to 'sdpa'"
            )

    @contextmanager
    def _scoring(self) -> Iterator[None]:
        with self._engine.at_work():
            yield
        self._yield_memory()

    def _yield_memory(self) -> None:
        """Cached memory is not available to other processes of the GPU."""
        if self.device == "cuda" and (self.spec.yields_memory or self.spec.on_host):
            torch.cuda.empty_cache()

    def _training(self) -> TrainEngine:
        if self._trained is None:
            raise UserError(
                "this learner is frozen (trainable = False); it scores and does not step, save or "
                "load"
            )
        assert self._average is None or not self._average.is_held, "swap back first"
        return self._trained

    def _step(self, terms: Sequence[Term], lr: float) -> StepReport:
        return self._apply(accumulate(self._training(), self._passes, self._passes.plan(terms)), lr)

    def _apply(self, accumulated: Accumulated, lr: float) -> StepReport:
        # Before the step: one that fails half-way leaves other weights, too.
        self._weights.changed()
        report = apply(self._training(), self._passes, accumulated, lr)
        if self._average is not None and not report.is_skipped:
            self._average.add()
        return report

    def _held_for(self, request: UpdateRequest) -> Accumulated | None:
        """Return the gradients that are held for ``request``, if any."""
        if self._held is not None and self._held[:2] == (request.version, request.batch_digest):
            return self._held[2]
        self._require_no_gradients()
        return None

    def _require_no_gradients(self) -> None:
        if self._held is not None:
            raise VersionConflict(
                f"the learner holds the gradients of another batch of version {self._held[0]}, and"
                " has not applied them; update with that batch, or build the learner again"
            )


def _measured_against(old_logprobs: np.ndarray, term: Term) -> Term:
    """``term`` with ``old_logprobs`` [tokens of its sequences] in place of those it has."""
    sequences = term.sequences
    rows = np.split(old_logprobs, np.cumsum(sequences.lengths)[:-1]) if len(sequences) else []
    per_token = {**sequences.per_token, "old_logprobs": rows}
    return replace(term, sequences=replace(sequences, per_token=per_token))
