"""Passes of one rank's model over micro-batches: packed, scored, and trained on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rlcore.algorithms.objective_types import Metrics, TokenBatch, TokenOutputs
from rlcore.cluster.progress import advance
from rlcore.learner.engine import FrozenEngine, TrainEngine
from rlcore.learner.packing_check import PackingCheck
from rlcore.learner.plan import StepPlan, TermPlan, plan_step
from rlcore.learner.sequence_parallel import SequenceParallel
from rlcore.learner.spec import LearnerSpec, Term
from rlcore.learner.utilisation import TrainingCost
from rlcore.models.packing import MicroBatch, Sequences, idle_micro_batch, pack


@dataclass(frozen=True, eq=False)
class Passes:
    """Micro-batches and forward passes by ``spec``, for every head.

    ``packing``: result of the packing check; with a leak, each row holds one document.
    ``parallel``: what divides the tokens of a pass among ranks.
    """

    engine: TrainEngine | FrozenEngine
    spec: LearnerSpec
    device: str
    packing: PackingCheck
    cost: TrainingCost
    parallel: SequenceParallel | None = None

    def plan(self, terms: Sequence[Term]) -> StepPlan:
        """Return this rank's work for a step on ``terms``, agreed on with the other ranks.

        A function of the sequences alone.
        """
        for term in terms:
            assert term.objective.head == self.spec.head, "a term is given to the model it is for"

        def pack_rows(term: Term, kept: np.ndarray) -> list[MicroBatch]:
            return self.pack(
                term.sequences,
                term.objective.targets,
                whole_groups=term.objective.whole_groups,
                kept=kept,
            )

        return plan_step(terms, pack_rows, self.exchange)

    def pack(
        self,
        sequences: Sequences,
        targets: str,
        *,
        whole_groups: bool = False,
        kept: np.ndarray | None = None,
    ) -> list[MicroBatch]:
        """Pack for the attention: one long row under flash attention, else rows of some times the
        longest sequence; answers share the tokens of their prompt where the model can.

        Every pass of the learner, with gradient or without, is packed here: log-probs from another
        packing differ by rounding.
        """
        return pack(
            sequences,
            micro_batch_tokens=self.spec.micro_batch_tokens,
            row_tokens=self._row_tokens,
            targets=targets,
            whole_groups=whole_groups,
            kept=kept,
            one_per_row=self.packing.leaks,
            share_prompts=self.packing.shares,
        )

    def exchange(self, value: Any) -> list[Any]:
        """Return the (picklable) ``value`` of each share's first rank, in their order."""
        return self.engine.exchange(value)[:: self.spec.sequence_parallel]

    @property
    def _row_tokens(self) -> int | None:
        flash = self.spec.attn_implementation.startswith("flash")
        return self.spec.row_tokens or (self.spec.micro_batch_tokens if flash else None)

    def outputs(
        self,
        batch: MicroBatch,
        *,
        temperature: float = 1.0,
        entropy_grad: bool | None = None,
        full_kl: bool = False,
    ) -> TokenOutputs:
        """One forward pass; the keywords apply to a language model only."""
        if self.parallel is None:
            return self._outputs(batch, temperature, entropy_grad, full_kl=full_kl)
        mine, own = self.parallel.cut(batch)
        part = self._outputs(mine, temperature, entropy_grad, full_kl=full_kl)

        parallel, places = self.parallel, self.tensor(own)

        def whole(values: torch.Tensor, *, wanted: bool) -> torch.Tensor:
            return parallel.whole(values, places, len(batch.sources)) if wanted else values

        is_lm = self.spec.head == "lm"
        return TokenOutputs(
            whole(part.logprobs, wanted=is_lm),
            whole(part.entropy, wanted=is_lm and entropy_grad is not None),
            whole(part.kl, wanted=full_kl),
            whole(part.values, wanted=not is_lm),
        )

    def _outputs(
        self, batch: MicroBatch, temperature: float, entropy_grad: bool | None, *, full_kl: bool
    ) -> TokenOutputs:
        inputs: dict[str, Any] = {
            "input_ids": self.tensor(batch.input_ids),
            "position_ids": self.tensor(batch.position_ids),
            "predictors": self.tensor(batch.predictors),
        }
        if batch.documents is not None and batch.continued is not None:
            inputs["documents"] = self.tensor(batch.documents)
            inputs["continued"] = self.tensor(batch.continued)
        if self.spec.head == "value":
            (values,) = self.engine.forward(**inputs)
            return TokenOutputs(values=values)
        logprobs, entropy, kl = self.engine.forward(
            **inputs,
            target_ids=self.tensor(batch.target_ids),
            temperature=temperature,
            entropy_grad=entropy_grad,
            full_kl=full_kl,
        )
        return TokenOutputs(logprobs, entropy, kl)

    def read(
        self,
        sequences: Sequences,
        targets: str,
        num_quantities: int,
        read: Callable[[MicroBatch], list[torch.Tensor]],
    ) -> list[list[np.ndarray]]:
        """Spread the quantities [targets] that ``read`` returns for a batch over the sequences.

        Each becomes float32 arrays aligned with ``token_ids``, 0 except at the targets.
        """
        flat = np.zeros((num_quantities, sequences.num_tokens), dtype=np.float32)
        self._fill(flat, self.pack(sequences, targets), read)
        cuts = np.cumsum(sequences.lengths)[:-1]
        return [np.split(row, cuts) if len(row) else [] for row in flat]

    def rescore(self, term: TermPlan) -> np.ndarray:
        """Return the log-probs of the tokens that ``term`` trains on, from the same micro-batches:
        [tokens of all its sequences] float32, NaN on every other token.

        Until the weights change they equal those of the passes with gradient bit for bit, so that
        the first ratios are exactly 1: the rounding of another packing would exceed GSPO's clip
        range.
        """

        def read(batch: MicroBatch) -> list[torch.Tensor]:
            return [self.outputs(batch, temperature=term.objective.temperature).logprobs]

        flat = np.full((1, len(term.weights)), np.nan, dtype=np.float32)
        self._fill(flat, term.batches, read)
        return flat[0]

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        """Return ``array`` on the device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _fill(
        self,
        flat: np.ndarray,
        batches: Sequence[MicroBatch],
        read: Callable[[MicroBatch], list[torch.Tensor]],
    ) -> None:
        """Write what ``read`` returns for each batch to its targets' places in ``flat``
        [quantities, tokens of all sequences]."""
        with torch.no_grad():
            for batch in self._in_lockstep(batches):
                found = read(batch)
                advance()
                # An idle pass has a target as well, which belongs to no sequence.
                if batch.num_tokens:
                    for row, values in zip(flat, found, strict=True):
                        row[batch.sources] = values.float().cpu().numpy()

    def _in_lockstep(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Add idle passes where a forward pass is collective and another rank makes more: a rank
        that stopped early would leave the others waiting."""
        if not self.engine.lockstep:
            return list(batches)
        num_passes = max(self.engine.exchange(len(batches)))
        return [*batches, *[idle_micro_batch()] * (num_passes - len(batches))]


SKIPPED = "/skipped_steps"  # the end of the name of a count


@dataclass(frozen=True)
class StepReport:
    """``means``: global means of the step; ``maxes``: global maxima; ``counts`` add over steps."""

    means: dict[str, float] = field(default_factory=dict)
    maxes: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    @property
    def is_skipped(self) -> bool:
        """Whether the step has changed no weight, its gradient not being finite."""
        return any(value for name, value in self.counts.items() if name.endswith(SKIPPED))

    def flat(self) -> dict[str, float]:
        """All of them by name."""
        return self.means | self.maxes | self.counts


def over_ranks(reports: Sequence[StepReport]) -> StepReport:
    """Combine the ranks' shares of one step: means and counts were normalised globally and add."""
    return _merged(reports, sum)


def over_steps(reports: Sequence[StepReport]) -> StepReport:
    """Combine the steps of one update: means average, maxima stay maxima, counts add."""
    return _merged(reports, lambda values: sum(values) / len(values))


def _merged(reports: Sequence[StepReport], of_means: Callable[[list[float]], float]) -> StepReport:
    def combined(kind: str, how: Callable[[list[float]], float]) -> dict[str, float]:
        parts = [getattr(report, kind) for report in reports]
        # A rank without work reports no means, so names differ between ranks.
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: float(how([part[name] for part in parts if name in part])) for name in names}

    return StepReport(combined("means", of_means), combined("maxes", max), combined("counts", sum))


@dataclass(frozen=True, slots=True)
class Accumulated:
    """A step whose gradients are summed, and not applied yet.

    ``report``: what this rank's passes reported. ``outputs``: of each micro-batch of the first
    term, without gradient.
    """

    plan: StepPlan
    report: StepReport
    outputs: list[TokenOutputs]

    def scores(self) -> list[np.ndarray]:
        """Return log-probs (nats) and entropies [tokens of all sequences of the first term] as the
        passes computed them, float32; NaN on tokens that it does not train on, and entropies also
        where its objective leaves them out."""
        term = self.plan.terms[0]
        flat = np.full((2, len(term.weights)), np.nan, dtype=np.float32)
        for batch, found in zip(term.batches, self.outputs, strict=True):
            for row, values in zip(flat, (found.logprobs, found.entropy), strict=True):
                if len(values):
                    row[batch.sources] = values.float().cpu().numpy()
        return list(flat)


def accumulate(engine: TrainEngine, passes: Passes, plan: StepPlan) -> Accumulated:
    """Run ``plan``'s passes and sum the gradients of all terms."""
    sums: dict[str, list[torch.Tensor]] = {}
    maxes: dict[str, list[torch.Tensor]] = {}
    outputs: list[TokenOutputs] = []
    work = [(term, batch) for term in plan.terms for batch in term.batches]
    for index in range(plan.num_passes):
        # Gradients are summed here and reduced over the ranks once. The losses are divided by
        # global counts, so the sum is the gradient of the whole step, however it is cut.
        engine.begin_pass(last=index == plan.num_passes - 1)
        if index < len(work):
            found, loss, metrics = _loss(passes, *work[index])
            # ``work`` begins with the first term's batches; only of these scores are asked
            # (``scores``).
            if index < len(plan.terms[0].batches):
                outputs.append(
                    TokenOutputs(logprobs=found.logprobs.detach(), entropy=found.entropy.detach())
                )
            del found  # with it goes the graph, as soon as it was walked
        else:
            # Its gradient is 0, but its backward joins the collectives of the other ranks.
            idle = passes.outputs(idle_micro_batch())
            loss, metrics = (idle.logprobs.sum() + idle.values.sum()) * 0.0, Metrics()
        engine.backward(loss)
        advance()
        for name, value in metrics.sums.items():
            sums.setdefault(name, []).append(value)
        for name, value in metrics.maxes.items():
            maxes.setdefault(name, []).append(value)
    # Sums, as each pass's loss and metrics are already divided by the global counts.
    report = StepReport(
        means={name: float(torch.stack(values).sum()) for name, values in sums.items()},
        maxes={name: float(torch.stack(values).max()) for name, values in maxes.items()},
        counts={
            "perf/trained_tokens": sum(batch.num_tokens for _, batch in work),
            "perf/padded_tokens": sum(batch.input_ids.size for _, batch in work),
            f"{plan.terms[0].objective.name}/model_flops": passes.cost.flops(
                sum(batch.num_tokens for _, batch in work),
                sum(term.squared_lengths for term in plan.terms),
            ),
        },
    )
    return Accumulated(plan, report, outputs)


def apply(engine: TrainEngine, passes: Passes, accumulated: Accumulated, lr: float) -> StepReport:
    """Make one optimizer step at ``lr`` with the gradients of ``accumulated``; return the report of
    all ranks.

    Gradient norm, learning rate and the step's counts are reported under the first term's name.
    ``<name>/model_flops``: the FLOPs that the tokens trained on need, of all terms.
    """
    outcome = engine.step(lr)
    advance()
    prefix = accumulated.plan.terms[0].objective.name
    report = over_ranks(passes.exchange(accumulated.report))
    report.means.update({f"{prefix}/grad_norm": outcome.grad_norm, f"{prefix}/lr": lr})
    report.counts.update(
        {
            # A step is skipped for a norm that is not finite, and changes nothing.
            f"{prefix}{SKIPPED}": float(not outcome.applied),
            f"{prefix}/zero_gradient_steps": float(outcome.grad_norm == 0.0),
        }
    )
    return report


def _loss(
    passes: Passes, term: TermPlan, batch: MicroBatch
) -> tuple[TokenOutputs, torch.Tensor, Metrics]:
    """``batch``'s outputs, its share of ``term`` times its coefficient, and its metrics."""
    objective = term.objective
    outputs = passes.outputs(
        batch,
        temperature=objective.temperature,
        entropy_grad=objective.entropy_grad,
        full_kl=objective.full_kl,
    )
    known = TokenBatch(
        weights=passes.tensor(term.weights[batch.sources]),
        mean_weight=term.mean_weight,
        rows=passes.tensor(batch.sequences),
        fields={name: passes.tensor(array[batch.sources]) for name, array in term.fields.items()},
        groups=passes.tensor(term.groups[batch.sequences] if len(term.groups) else term.groups),
    )
    loss, metrics = objective(outputs, known)
    return outputs, term.coef * loss, metrics
