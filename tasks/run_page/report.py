"""The report of a running loop: a log line per iteration, the findings of checks, and the
curves."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

import polars as pl
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.transactions import get_transaction

from rlcore.diagnostics.watch import Diagnostics, findings_frame, of_error
from rlcore.report.text import one_line
from rlcore.results.metrics import stage_metrics
from rlcore.rl.state import LoopState
from rlcore.supervised.loop import Progress
from tasks.run_page.tracking import Tracker
from tasks.runtime.alerts import alert_finding
from tasks.runtime.caching import StageRun


def forget_ended_tasks(kept: object = None) -> None:
    """Drop what Prefect holds of the tasks that have ended inside the task and flow under way.

    A task's transaction keeps that of every task run inside, to commit or roll back their results
    with its own, and a flow run links their results, by address, to the states that ended with
    them, to show what a later task was given. The phases of an iteration store no result there, and
    a stage has thousands of them. The link of the result ``kept`` stays: the next iteration begins
    with it.
    """
    transaction = get_transaction()
    if transaction is not None:
        transaction.children.clear()
    context = FlowRunContext.get()
    if context is not None:
        link = context.run_results.get(id(kept))
        context.run_results.clear()
        if link is not None:
            context.run_results[id(kept)] = link


SECONDS_BETWEEN_LINES = 5.0
SHOWN_CHARS = 120  # of a prompt or a response in a log line
DIAGNOSTICS = "diagnostics"  # kind of the artifact, and its table


class IterationReport:
    """Logs each RL iteration in one line, checks its metrics, and sends them to the tracker.

    Made by ``IterationReport.open``.
    """

    # Slots keep Prefect, which encodes a flow's arguments, from walking through the run.
    __slots__ = ("_began", "_diagnostics", "_first", "_iteration", "_run", "_total")

    def __init__(self, run: StageRun) -> None:
        self._run, self._total = run, run.recipe.rl.iterations
        self._began = monotonic()
        self._first: int | None = None
        self._iteration = 0
        self._diagnostics = Diagnostics(run.recipe, log=get_run_logger().warning)

    @classmethod
    @contextmanager
    def open(cls, run: StageRun) -> "Iterator[IterationReport]":
        """Yield the report of an RL stage; its findings are stored when the stage ends."""
        report = cls(run)
        try:
            yield report
        except Exception as error:
            report._close(stopped_by=error)
            raise
        report._close()

    def __call__(self, state: LoopState, metrics: dict[str, float]) -> None:
        """Report the iteration that ``state`` closes.

        Raises DiagnosticError when a check ends the run.
        """
        forget_ended_tasks(kept=state)
        if self._first is None:
            self._first = state.iteration - 1
            self._began = monotonic() - metrics["timing_s/step"]
            # Iteration 0 is the first validation; a resumed run starts later.
            history = stage_metrics(self._run.store, self._run.records, last=self._first)
            self._diagnostics.replay(history)
            self._run.tracker.log_table(history)
        self._iteration = state.iteration
        per_iteration = (monotonic() - self._began) / (state.iteration - self._first)
        left = (self._total - state.iteration) * per_iteration
        get_run_logger().info(
            f"iteration {state.iteration}/{self._total}{_figures(metrics)}"
            f"  {metrics['timing_s/step']:.2f} s"
            f"  {metrics['perf/total_tokens_per_s']:,.0f} tokens/s"
            f"  at most {_clock(left)} left"
        )
        if "val/score" in metrics:
            get_run_logger().info(self._completion(state.iteration))
            self._run.pipeline.refresh_page()
        self._run.tracker.log(metrics, step=state.iteration, stage="rl")
        for finding in self._diagnostics.observe(state.iteration, metrics):
            alert_finding(self._run.recipe.name, self._run.pipeline.flow_run_id, finding)

    def _completion(self, iteration: int) -> str:
        """Return one response of the iteration's batch, its prompt's end and its score."""
        store, key = self._run.store, f"{self._run.records}/{iteration:06d}"
        found = [store.find(kind, key) for kind in ("rollouts", "rewards")]
        if None in found:
            return "no completion is stored"
        rollouts, rewards = (ref for ref in found if ref is not None)
        rows = store.table(rollouts, "rollouts").join(
            store.table(rewards, "rewards"), on="trajectory_id", maintain_order="left"
        )
        row = rows.row(iteration % rows.height, named=True)
        prompts = store.table(self._run.parents["dataset"], "prompts")
        prompt = prompts.row(by_predicate=pl.col("uid") == row["uid"], named=True)["prompt"]
        asked, answered = (_shortened(text) for text in (prompt[-1]["content"], row["response"]))
        score = "no score" if row["score"] is None else f"score {row['score']:.2f}"
        return f"a sample of iteration {iteration}: {asked} -> {answered}  ({score})"

    def _close(self, stopped_by: Exception | None = None) -> None:
        """Store the findings, with that of the error ``stopped_by``, if any."""
        findings = self._diagnostics.findings
        if stopped_by is not None:
            findings = self._diagnostics.findings_until(stopped_by, self._iteration + 1)
            if meaning := of_error(stopped_by, self._iteration + 1, self._run.recipe):
                get_run_logger().error(meaning.sentence)
                findings.append(meaning)
        store, key = self._run.store, self._run.records
        store.discard(DIAGNOSTICS, key)  # what an earlier attempt left
        tables = {DIAGNOSTICS: findings_frame(findings)}
        store.put(DIAGNOSTICS, key, tables=tables, lineage=self._run.lineage())


def training_report(stage: str, tracker: Tracker) -> Callable[[Progress], None]:
    """Return what sends the metrics of each optimizer step of a supervised stage to the tracker,
    and logs its progress every few seconds."""
    last = -SECONDS_BETWEEN_LINES

    def report(progress: Progress) -> None:
        nonlocal last
        tracker.log(progress.metrics, step=progress.step, stage=stage)
        if monotonic() - last < SECONDS_BETWEEN_LINES and progress.step < progress.total:
            return
        last = monotonic()
        left = "" if progress.eta_s is None else f"  {_clock(progress.eta_s)} left"
        get_run_logger().info(
            f"{stage} step {progress.step}/{progress.total}"
            f"  loss {progress.metrics[f'{stage}/loss']:.3f}"
            f"  {progress.tokens_per_s:,.0f} tokens/s{left}"
        )

    return report


# Metric, its name in the line per iteration, its format.
_SHOWN = (
    ("critic/score/mean", "reward", ".3f"),
    ("critic/accuracy", "accuracy", ".3f"),
    ("val/accuracy", "validation", ".3f"),
    ("response_length/mean", "length", ".1f"),
    ("actor/entropy", "entropy", ".3f"),
    ("actor/ref_kl", "KL", ".4f"),
)


def _figures(metrics: Mapping[str, float]) -> str:
    """Return the figures of an iteration; validation by its score where nothing is judged."""
    shown = {"val/accuracy": metrics.get("val/score"), **metrics}
    return "".join(
        f"  {label} {shown[name]:{form}}"
        for name, label, form in _SHOWN
        if shown.get(name) is not None
    )


def _shortened(text: str) -> str:
    """Return ``text`` in quotes and one line, its end where it is long.

    A policy may write anything: what a terminal would take for a command is shown as a box.
    """
    line = one_line(text)
    return f'"{line if len(line) <= SHOWN_CHARS else "..." + line[-SHOWN_CHARS:]}"'


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes}:{rest:02d}"
