"""One rank of the learner: scoring, optimizer steps, versioned updates, publishing, checkpoints.

Every method is collective: with several ranks, all call it in the same order, each with its own
share of the sequences. Losses and metrics are normalised by the counts of all shares together.
"""

import gc
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from rlcore.engines.types import WeightStamp, WeightUpdate
from rlcore.learner.engine import FrozenEngine, TrainEngine, make_deterministic, pick_device
from rlcore.learner.model import load_model, write_hf_directory
from rlcore.learner.packing_check import check_packing, worst
from rlcore.learner.passes import Passes, optimizer_step
from rlcore.learner.plan import StepPlan, plan_step
from rlcore.learner.report import StepReport, over_steps
from rlcore.learner.shards import read_manifest, read_tensors
from rlcore.learner.spec import (
    LearnerSpec,
    Term,
    TokenScores,
    UpdateRequest,
    UpdateResult,
    VersionConflict,
)
from rlcore.models.packing import MicroBatch, Sequences
from rlcore.weights.digest import combined_digest, tensor_digests, write_state
from schemas.errors import UserError


class Learner:
    """``spec`` on rank ``rank`` of ``world_size``, which meet at ``rendezvous``.

    That is an ``init_method`` of ``torch.distributed``; a lone rank needs none. A model that does
    not keep packed documents apart gets rows of one document (``packing_warning``). Raises
    ``UserError`` when device, model or process group cannot be what ``spec`` asks for, or the model
    cannot be padded.
    """

    # What deepspeed.initialize and from_pretrained import in their own time: five seconds.
    IMPORTS = (
        "deepspeed.runtime.zero.muon.muon_optimizer",
        "transformers.models.auto.modeling_auto",
    )

    def __init__(
        self,
        spec: LearnerSpec,
        rank: int = 0,
        world_size: int = 1,
        rendezvous: str = "",
    ) -> None:
        self.spec, self.rank, self.world_size = spec, rank, world_size
        self.device = pick_device(spec.device)
        make_deterministic(spec, self.device)
        model = load_model(spec, self.device)
        self._architecture = type(model.lm).__name__
        packing = check_packing(model, spec, self.device)
        self._trained = (
            TrainEngine(
                model,
                spec,
                device=self.device,
                rank=rank,
                world_size=world_size,
                rendezvous=rendezvous,
            )
            if spec.trainable
            else None
        )
        self._engine = self._trained or FrozenEngine(model, self.device)
        # Ranks on CPUs of different kinds could round to different decisions.
        self._packing = worst(self._engine.exchange(packing))
        self._passes = Passes(self._engine, spec, self.device, one_per_row=self._packing.leaks)
        self._version = 0
        self._last: tuple[int, str, UpdateResult] | None = None
        self._digests: dict[str, str] | None = None
        self._half_done: int | None = None

    def packing_warning(self, lengths: np.ndarray) -> str | None:
        """Return why each row holds one document and what that costs, or None where rows are full.

        ``lengths``: tokens of the sequences of a batch, all ranks together. Nothing passes through
        the model.
        """
        if not self._packing.leaks:
            return None
        now, packed = (
            self._passes.padding_share(lengths, one_per_row=one_per_row)
            for one_per_row in (True, False)
        )
        unit = "nats" if self.spec.head == "lm" else "of a score's spread"
        return (
            f"architecture {self._packing.architecture} does not keep packed documents apart (one"
            f" moves its neighbour's outputs by up to {self._packing.leak:.2g} {unit}, rounding by"
            f" at most {self._packing.limit:.2g}), so each row holds one document:"
            f" {now:.0%} of the tokens computed for the first batch are padding, packed it would be"
            f" {packed:.0%} (perf/padded_tokens and perf/trained_tokens follow it)"
        )

    def logprobs(
        self,
        sequences: Sequences,
        temperature: float = 1.0,
        *,
        targets: str = "all",
        entropy: bool = False,
        full_kl: bool = False,
    ) -> TokenScores:
        """Return log-probs (nats) of this rank's ``sequences``; entropies and KLs when asked for.

        ``targets``: "all" tokens with a predecessor, or "loss_mask" (the head then runs on those
        alone); other places are 0. ``full_kl``: exact KL(policy || reference) of each token's
        distribution, at ``temperature``; ``UserError`` without ``reference_dir``.
        """
        self._need("lm", "logprobs")
        self._need_reference(full_kl)

        def read(batch: MicroBatch) -> list[torch.Tensor]:
            found = self._passes.outputs(
                batch,
                temperature=temperature,
                entropy_grad=False if entropy else None,
                full_kl=full_kl,
            )
            return [found.logprobs, *[found.entropy] * entropy, *[found.kl] * full_kl]

        logprobs, *more = self._passes.read(sequences, targets, 1 + entropy + full_kl, read)
        return TokenScores(
            logprobs=logprobs,
            entropies=more[0] if entropy else [],
            kls=more[-1] if full_kl else [],
        )

    def values(self, sequences: Sequences, *, targets: str = "loss_mask") -> list[np.ndarray]:
        """Return a value model's scores of this rank's ``sequences``, aligned with ``token_ids``.

        ``targets``: "loss_mask", the value of the state *before* each such token (what GAE wants);
        or "last", the score of the whole text, read at its last token and found at its place. Other
        places are 0. Raises ``UserError`` when the head is not "value".
        """
        self._need("value", "values")
        (values,) = self._passes.read(
            sequences, targets, 1, lambda batch: [self._passes.outputs(batch).values]
        )
        return values

    def step(self, terms: Sequence[Term], lr: float) -> dict[str, float]:
        """Make one optimizer step on the sum of ``terms`` over all ranks; return global metrics.

        Raises ``UserError``, on every rank, when any rank's share cannot be packed or lacks a
        field, when a term has no token to train on, or is for another head.
        """
        return self._step(terms, lr).flat()

    def update(self, request: UpdateRequest) -> UpdateResult:
        """Step once per mini-batch and count the weight version up, as a compare-and-set.

        Asked again for the update that led to the present version (same version and batch digest),
        return its recorded result. Any other version raises ``VersionConflict``; so does every
        update after one that broke off between steps, until ``load``.
        """
        asked = (request.version, request.batch_digest)
        if self._last is not None and self._last[:2] == asked and self._half_done is None:
            return self._last[2]
        if self._half_done is not None:
            raise VersionConflict(
                f"the update of version {self._half_done} broke off between optimizer steps, so "
                "the weights are neither old nor new; load a checkpoint first"
            )
        if request.version != self._version:
            raise VersionConflict(
                f"an update was asked for version {request.version} and the learner holds version "
                f"{self._version}; load the checkpoint of version {request.version} or make the "
                "batch anew"
            )
        mini_batches, old_logprobs = request.mini_batches, []
        if request.own_logprobs:
            old_logprobs = [self._rescored(terms) for terms in mini_batches]
            mini_batches = [
                [_measured_against(old, terms[0]), *terms[1:]]
                for old, terms in zip(old_logprobs, mini_batches, strict=True)
            ]
        self._half_done = self._version
        reports = [
            self._step(terms, lr) for terms, lr in zip(mini_batches, request.lrs, strict=True)
        ]
        self._half_done = None
        self._version += 1
        result = UpdateResult(
            version=self._version,
            metrics=over_steps(reports).flat(),
            steps=[report.flat() for report in reports],
            old_logprobs=old_logprobs,
        )
        self._last = (*asked, result)
        return result

    def stamp(self) -> WeightStamp:
        """Return version and digest of the weights held now. Hashes them once per change."""
        if self._digests is None:
            self._digests = self._digests_of(self._state_on_first_rank())
        return WeightStamp(self._version, combined_digest(self._digests))

    def publish(self, path: str | Path, version: int | None = None) -> WeightUpdate:
        """Write the canonical HF state to the safetensors file ``path`` (rank 0; atomic).

        ``version`` guards against publishing other weights than meant: ``VersionConflict``.
        """
        if version is not None and version != self._version:
            raise VersionConflict(
                f"version {version} was to be published and the learner holds {self._version}"
            )
        state = self._state_on_first_rank()
        if self._digests is None:
            self._digests = self._digests_of(state)
        if self.rank == 0:
            write_state(path, state)
        return WeightUpdate(self.stamp(), str(path), self._digests)

    def export_hf(self, directory: str | Path) -> None:
        """Write a Hugging Face directory (rank 0): weights, config, tokenizer, chat template."""
        state = self._state_on_first_rank()
        if self.rank == 0:
            write_hf_directory(
                Path(directory),
                source=Path(self.spec.model_dir),
                state=state,
                dtype=self.spec.dtype,
                architecture=self._architecture,
            )

    def save(self, directory: str | Path) -> None:
        """Write all that training continues from: shards, RNG, version, last update.

        Safetensors and JSON, of which each rank has its own; ``directory`` must be one that every
        rank reaches. Not atomic; the caller publishes it.
        """
        engine = self._training()
        stem = Path(directory) / f"rank{self.rank:05d}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        parameters = engine.save(stem)
        rng = {"cpu": torch.get_rng_state()}
        if self.device == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state()
        save_file(rng, f"{stem}.rng.safetensors")
        last = self._last and [*self._last[:2], asdict(replace(self._last[2], old_logprobs=[]))]
        manifest = {
            "layout": self._layout(),
            "version": self._version,
            "last": last,
            "parameters": parameters,
        }
        Path(f"{stem}.json").write_text(json.dumps(manifest))

    def load(self, directory: str | Path) -> None:
        """Continue from ``save``: bit for bit, in any process, with the same ranks and stage.

        Raises ``UserError`` when the checkpoint is missing or was written by another layout.
        """
        engine = self._training()
        stem = Path(directory) / f"rank{self.rank:05d}"
        path = Path(f"{stem}.json")
        if stem.with_suffix(".pt").is_file():
            raise UserError(
                f"checkpoint {directory} is of an earlier version, whose pickled shards are not"
                " read any more; remove it, or finish its run with the version that wrote it"
            )
        if not path.is_file():
            raise UserError(
                f"{path} does not exist; give a directory that a learner of {self.world_size} "
                "rank(s) saved"
            )
        saved = read_manifest(path)
        if saved["layout"] != self._layout():
            differs = [n for n, value in self._layout().items() if saved["layout"].get(n) != value]
            name = differs[0]
            raise UserError(
                f"checkpoint {directory} was saved with {name} = {saved['layout'].get(name)} and "
                f"this learner has {self._layout()[name]}; set it back, or start from the exported "
                "model with a fresh optimizer"
            )
        engine.load(stem, saved["parameters"])
        rng = read_tensors(Path(f"{stem}.rng.safetensors"))
        torch.set_rng_state(rng["cpu"])
        if "cuda" in rng:
            torch.cuda.set_rng_state(rng["cuda"])
        self._version = saved["version"]
        last = saved["last"]
        self._last = last and (last[0], last[1], UpdateResult(**last[2]))
        self._digests, self._half_done = None, None

    def close(self) -> None:
        """Free the model; the process and its group stay, for a learner built after this one."""
        self._engine.close()
        del self._engine, self._trained, self._passes
        if self.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()  # what is only cached here is missing to other processes

    def _step(self, terms: Sequence[Term], lr: float) -> StepReport:
        """One optimizer step on all ranks' shares."""
        plan = self._plan(terms)
        self._digests = None
        return optimizer_step(self._training(), self._passes, plan, lr)

    def _rescored(self, terms: Sequence[Term]) -> np.ndarray:
        """The log-probs of the first term's trained tokens, packed as ``_step`` packs them."""
        return self._passes.rescore(self._plan(terms).terms[0])

    def _plan(self, terms: Sequence[Term]) -> StepPlan:
        """What this rank does in a step on ``terms``: a function of their sequences alone."""
        names = [term.objective.name for term in terms]
        if len(set(names)) < max(1, len(names)):
            raise UserError(
                f"a step has the terms {', '.join(names) or '(none)'}; give it at least one, each "
                "with a name of its own"
            )
        for term in terms:
            self._need(term.objective.head, f"objective '{term.objective.name}'")
            self._need_reference(term.objective.full_kl)

        def pack_rows(term: Term, kept: np.ndarray) -> list[MicroBatch]:
            return self._passes.pack(
                term.sequences,
                term.objective.targets,
                whole_groups=term.objective.whole_groups,
                kept=kept,
            )

        return plan_step(terms, pack_rows, self._training().exchange)

    def _need(self, head: str, what: str) -> None:
        if self.spec.head != head:
            raise UserError(
                f"{what} needs a learner with head = '{head}' and this one has "
                f"'{self.spec.head}'; ask the other model"
            )

    def _need_reference(self, full_kl: bool) -> None:
        if full_kl and self.spec.reference_dir is None:
            raise UserError(
                "kl.estimator = 'full' compares whole distributions and this learner holds no "
                "reference; set its reference_dir"
            )

    def _state_on_first_rank(self) -> dict[str, torch.Tensor]:
        """The whole canonical state on CPU on rank 0; other ranks take part and keep nothing.

        A frozen learner has no peers: each of its ranks keeps its own.
        """
        gathered = self.spec.zero_stage == 3 and self.spec.trainable
        state: dict[str, torch.Tensor] = {}
        for name, tensor in self._engine.state():
            if self.rank == 0 or self._trained is None:
                state[name] = tensor.cpu().clone() if gathered else tensor.cpu()
        return state

    def _digests_of(self, state: dict[str, torch.Tensor]) -> dict[str, str]:
        """The digests of rank 0's tensors, on every rank."""
        return self._engine.exchange(tensor_digests(state.items()))[0]

    def _layout(self) -> dict[str, Any]:
        """What a checkpoint's shards depend on."""
        return {
            "world_size": self.world_size,
            "zero_stage": self.spec.zero_stage,
            "dtype": self.spec.dtype,
            "head": self.spec.head,
        }

    def _training(self) -> TrainEngine:
        if self._trained is None:
            raise UserError(
                "this learner is frozen (trainable = False); it scores and does not step, save or "
                "load"
            )
        return self._trained


def _measured_against(old_logprobs: np.ndarray, term: Term) -> Term:
    """``term`` with ``old_logprobs`` [tokens of its sequences] in place of its own."""
    sequences = term.sequences
    rows = np.split(old_logprobs, np.cumsum(sequences.lengths)[:-1]) if len(sequences) else []
    per_token = {**sequences.per_token, "old_logprobs": rows}
    return replace(term, sequences=replace(sequences, per_token=per_token))
