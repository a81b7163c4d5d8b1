"""One rank of the learner: scoring, optimizer steps, versioned updates, publishing, checkpoints.

Every method is collective: with several ranks, all call it in the same order, each with its own
share of the sequences. Losses and metrics are normalised by the counts of all shares together.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlcore.algorithms.objective import Metrics, Objective, TokenBatch, TokenOutputs
from rlcore.learner.engine import FrozenEngine, TrainEngine, make_deterministic, pick_device
from rlcore.learner.model import load_policy, write_hf_directory
from rlcore.learner.plan import StepPlan, offer_share, settle
from rlcore.learner.report import StepReport, over_ranks, over_steps
from rlcore.learner.spec import (
    LearnerSpec,
    TokenScores,
    UpdateRequest,
    UpdateResult,
    VersionConflict,
)
from rlcore.models.digest import state_digest, write_state
from rlcore.models.packing import MicroBatch, Sequences, idle_micro_batch, pack
from rlcore.rollout.types import WeightStamp, WeightUpdate
from schemas.errors import UserError


class Learner:
    """``spec`` on rank ``rank`` of ``world_size``; ``master`` is (host, port) of rank 0.

    A lone rank needs no address. Raises ``UserError`` when device, model or process group cannot be
    what ``spec`` asks for.
    """

    def __init__(
        self,
        spec: LearnerSpec,
        rank: int = 0,
        world_size: int = 1,
        master: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self.spec, self.rank, self.world_size = spec, rank, world_size
        self.device = pick_device(spec.device)
        make_deterministic(spec, self.device)
        model = load_policy(spec, self.device)
        self._frozen = FrozenEngine(model, self.device) if not spec.trainable else None
        self._trained = (
            TrainEngine(
                model,
                spec,
                device=self.device,
                rank=rank,
                world_size=world_size,
                master=master,
            )
            if spec.trainable
            else None
        )
        self._version = 0
        self._last: tuple[int, str, UpdateResult] | None = None
        self._digest: str | None = None
        self._half_done: int | None = None

    def logprobs(
        self,
        sequences: Sequences,
        temperature: float = 1.0,
        *,
        targets: str = "all",
        entropy: bool = False,
    ) -> TokenScores:
        """Return log-probs (nats) of this rank's ``sequences``, with entropies when asked for.

        ``targets``: "all" tokens with a predecessor, or "loss_mask" (the head then runs on those
        alone); other places are 0.
        """
        batches = self._pack(sequences, targets)
        num_tokens = sequences.num_tokens
        flat = np.zeros((2, num_tokens), dtype=np.float32)
        with torch.no_grad():
            for batch in self._in_lockstep(batches):
                scores = self._engine.forward(
                    **self._inputs(batch, temperature),
                    entropy_grad=False if entropy else None,
                )
                if batch.num_tokens:
                    for row, values in enumerate(scores[: 2 if entropy else 1]):
                        flat[row, batch.sources] = values.float().cpu().numpy()
        cuts = np.cumsum(sequences.lengths)[:-1]
        split = [np.split(row, cuts) if num_tokens else [] for row in flat]
        return TokenScores(split[0], split[1] if entropy else [])

    def step(self, sequences: Sequences, objective: Objective, lr: float) -> dict[str, float]:
        """Make one optimizer step over all ranks' ``sequences``; return its global metrics.

        Raises ``UserError``, on every rank, when any rank's share cannot be packed or lacks a
        field, or when no rank has a token to train on.
        """
        return self._step(sequences, objective, lr).flat()

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
        self._half_done = self._version
        reports = [
            self._step(sequences, request.objective, lr)
            for sequences, lr in zip(request.mini_batches, request.lrs, strict=True)
        ]
        self._half_done = None
        self._version += 1
        result = UpdateResult(
            version=self._version,
            metrics=over_steps(reports).flat(),
            steps=[report.flat() for report in reports],
        )
        self._last = (*asked, result)
        return result

    def stamp(self) -> WeightStamp:
        """Return version and digest of the weights held now. Hashes them once per change."""
        if self._digest is None:
            self._digest = self._digest_of(self._state_on_first_rank())
        return WeightStamp(self._version, self._digest)

    def publish(self, path: str | Path, version: int | None = None) -> WeightUpdate:
        """Write the canonical HF state to the safetensors file ``path`` (rank 0; atomic).

        ``version`` guards against publishing other weights than meant: ``VersionConflict``.
        """
        if version is not None and version != self._version:
            raise VersionConflict(
                f"version {version} was to be published and the learner holds {self._version}"
            )
        state = self._state_on_first_rank()
        if self._digest is None:
            self._digest = self._digest_of(state)
        if self.rank == 0:
            write_state(path, state)
        return WeightUpdate(self.stamp(), str(path))

    def export_hf(self, directory: str | Path) -> None:
        """Write a Hugging Face directory (rank 0): weights, config, tokenizer, chat template."""
        state = self._state_on_first_rank()
        if self.rank == 0:
            source = Path(self.spec.model_dir)
            write_hf_directory(Path(directory), source=source, state=state, dtype=self.spec.dtype)

    def save(self, directory: str | Path) -> None:
        """Write all that training continues from: shards, RNG, version, last update.

        ``directory`` must be one that every rank reaches. Not atomic; the caller publishes it.
        """
        engine = self._training()
        root = Path(directory)
        root.mkdir(parents=True, exist_ok=True)
        engine.save(root)
        last = self._last and [*self._last[:2], asdict(self._last[2])]
        torch.save(
            {
                "layout": self._layout(),
                "version": self._version,
                "last": last,
                "rng": torch.get_rng_state(),
                "cuda_rng": torch.cuda.get_rng_state() if self.device == "cuda" else None,
            },
            root / f"rank{self.rank:05d}.pt",
        )

    def load(self, directory: str | Path) -> None:
        """Continue from ``save``: bit for bit, in any process, with the same ranks and stage.

        Raises ``UserError`` when the checkpoint is missing or was written by another layout.
        """
        engine = self._training()
        path = Path(directory) / f"rank{self.rank:05d}.pt"
        if not path.is_file():
            raise UserError(
                f"{path} does not exist; give a directory that a learner of {self.world_size} "
                "rank(s) saved"
            )
        saved = torch.load(path, weights_only=True)
        if saved["layout"] != self._layout():
            differs = [n for n, value in self._layout().items() if saved["layout"].get(n) != value]
            name = differs[0]
            raise UserError(
                f"checkpoint {directory} was saved with {name} = {saved['layout'].get(name)} and "
                f"this learner has {self._layout()[name]}; set it back, or start from the exported "
                "model with a fresh optimizer"
            )
        engine.load(Path(directory))
        torch.set_rng_state(saved["rng"])
        if saved["cuda_rng"] is not None:
            torch.cuda.set_rng_state(saved["cuda_rng"])
        self._version = saved["version"]
        last = saved["last"]
        self._last = last and (last[0], last[1], UpdateResult(**last[2]))
        self._digest, self._half_done = None, None

    def close(self) -> None:
        """Free the model."""
        self._engine.close()

    def _step(self, sequences: Sequences, objective: Objective, lr: float) -> StepReport:
        """One optimizer step on all ranks' shares."""
        engine = self._training()
        plan = self._plan(sequences, objective)
        self._digest = None
        sums: dict[str, list[torch.Tensor]] = {}
        maxes: dict[str, list[torch.Tensor]] = {}
        for index in range(plan.num_passes):
            engine.begin_pass(last=index == plan.num_passes - 1)
            busy = index < len(plan.batches)
            batch = plan.batches[index] if busy else idle_micro_batch()
            outputs = TokenOutputs(
                *engine.forward(
                    **self._inputs(batch, objective.temperature),
                    entropy_grad=objective.entropy_grad,
                )
            )
            if busy:
                loss, metrics = objective(outputs, self._token_batch(batch, plan))
            else:
                loss, metrics = outputs.logprobs.sum() * 0.0, Metrics()
            engine.backward(loss)
            for name, value in metrics.sums.items():
                sums.setdefault(name, []).append(value)
            for name, value in metrics.maxes.items():
                maxes.setdefault(name, []).append(value)
        outcome = engine.step(lr)
        mine = StepReport(
            means={name: float(torch.stack(values).sum()) for name, values in sums.items()},
            maxes={name: float(torch.stack(values).max()) for name, values in maxes.items()},
            counts={
                "perf/trained_tokens": sum(batch.num_tokens for batch in plan.batches),
                "perf/padded_tokens": sum(batch.input_ids.size for batch in plan.batches),
            },
        )
        report = over_ranks(engine.exchange(mine))
        prefix = objective.name
        report.means.update({f"{prefix}/grad_norm": outcome.grad_norm, f"{prefix}/lr": lr})
        report.counts.update(
            {
                f"{prefix}/skipped_steps": float(not outcome.applied),
                f"{prefix}/zero_gradient_steps": float(outcome.grad_norm == 0.0),
            }
        )
        return report

    def _plan(self, sequences: Sequences, objective: Objective) -> StepPlan:
        """Agree with the other ranks on counts and passes, and lay out this rank's share."""
        offer = offer_share(
            sequences, objective, lambda kept: self._pack(sequences, "loss_mask", kept)
        )
        shares = self._training().exchange(offer.share)
        return settle(offer, shares, sequences, objective)

    def _pack(
        self, sequences: Sequences, targets: str, kept: np.ndarray | None = None
    ) -> list[MicroBatch]:
        """Pack by the device's rule: one long row under flash attention, else the longest's."""
        flash = self.spec.attn_implementation.startswith("flash")
        default = self.spec.micro_batch_tokens if flash else None
        return pack(
            sequences,
            micro_batch_tokens=self.spec.micro_batch_tokens,
            row_tokens=self.spec.row_tokens or default,
            targets=targets,
            kept=kept,
        )

    def _token_batch(self, batch: MicroBatch, plan: StepPlan) -> TokenBatch:
        """What the objective needs to know of ``batch``'s targets, on the device."""
        fields = {name: self._tensor(array[batch.sources]) for name, array in plan.fields.items()}
        return TokenBatch(
            weights=self._tensor(plan.weights[batch.sources]),
            mean_weight=plan.mean_weight,
            rows=self._tensor(batch.sequences),
            fields=fields,
        )

    def _inputs(self, batch: MicroBatch, temperature: float) -> dict[str, Any]:
        return {
            "input_ids": self._tensor(batch.input_ids),
            "position_ids": self._tensor(batch.position_ids),
            "predictors": self._tensor(batch.predictors),
            "target_ids": self._tensor(batch.target_ids),
            "temperature": temperature,
        }

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _in_lockstep(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Add idle passes where a forward pass is collective and another rank makes more."""
        if self._trained is None or not self._trained.lockstep:
            return list(batches)
        num_passes = max(self._trained.exchange(len(batches)))
        return [*batches, *[idle_micro_batch()] * (num_passes - len(batches))]

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

    def _digest_of(self, state: dict[str, torch.Tensor]) -> str:
        """The digest of rank 0's ``state``, told to every rank."""
        mine = state_digest(state.items()) if state else ""
        return self._trained.exchange(mine)[0] if self._trained is not None else mine

    def _layout(self) -> dict[str, Any]:
        """What a checkpoint's shards depend on."""
        return {
            "world_size": self.world_size,
            "zero_stage": self.spec.zero_stage,
            "dtype": self.spec.dtype,
        }

    @property
    def _engine(self) -> TrainEngine | FrozenEngine:
        engine = self._trained or self._frozen
        assert engine is not None, "a learner holds exactly one engine"
        return engine

    def _training(self) -> TrainEngine:
        if self._trained is None:
            raise UserError(
                "this learner is frozen (trainable = False); it scores and does not step, save or "
                "load"
            )
        return self._trained
