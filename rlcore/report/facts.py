"""What is told of a run, gathered from its records: stages, figures, findings, origin. The report
shows all of it, the run's page parts of it, ``summary.json`` its figures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import groupby

import polars as pl

from rlcore.data.datasheet import Sheet, datasheet
from rlcore.diagnostics.measures import learns_from_a_model
from rlcore.diagnostics.watch import Finding, diagnose
from rlcore.report.draw import RL, Curves, Panel, curves, gap_panel
from rlcore.report.draw import STAGES as TRAINED
from rlcore.report.evaluation import EvaluationTable, of_checkpoints
from rlcore.report.samples import Asked, answers_of_checkpoints, pairs_compared
from rlcore.results.folders import SUMMARY
from rlcore.results.metrics import metrics_frame
from rlcore.results.run import Run, StageRecord
from rlcore.results.stage_rows import RestartRecord, restarts_of
from rlcore.results.summary import phase_seconds, proxy_and_truth, token_rates, verdict
from rlcore.rl.records import KIND as ITERATIONS
from rlcore.store.checks import ArtifactError
from schemas.artifacts import ArtifactRef, Manifest
from schemas.recipe import Recipe
from schemas.stages import stage_parents

MADE, CACHED, OPEN, GONE = "made", "cached", "not ended", "gone"  # states of a stage
PERIODS = 4  # of a check's trouble that are named, the last ones


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, by whoever knows: e.g. ("cancelled", "asked for by ...")."""

    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StageFacts:
    """A stage that the run has come to, and its artifact.

    ``made_from``: role -> name of an artifact. ``origins``: role -> the stage that made it, or a
    word for another artifact; of a stage that has not ended, what it is to read. ``producer``: the
    flow run that made the artifact, empty where it is not known.
    """

    name: str
    state: str
    seconds: float | None
    kind: str
    key: str
    sha256: str
    rows: str
    made_from: Mapping[str, str]
    origins: Mapping[str, str]
    producer: str

    @property
    def artifact(self) -> str:
        """Its name in the store."""
        return f"{self.kind}/{self.key}"


@dataclass(frozen=True, slots=True)
class Iterations:
    """The iterations of the stage rl; ``best``: that of the result, None before there is one."""

    count: int
    best: int | None


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a check found, in words of its ``last`` finding; ``periods``: the iterations of all."""

    last: Finding
    periods: str


@dataclass(frozen=True)
class Facts:
    """What is known of a run now. Times are ISO 8601, UTC. ``verdict``: empty before RL ended.
    ``newest``: the record of its last stage, with recipe and seed as the run had them. ``export``:
    where the exported model is, a path of the machine that ran the stage or a URL.

    Of a stage that has not ended, the tables and figures are None or empty.
    """

    name: str
    recipe: Recipe
    newest: StageRecord
    overrides: Mapping[str, str]
    state: str
    reason: str
    verdict: str
    began: str
    last: str
    iteration: int
    recorded: Iterations | None
    stages: Sequence[StageFacts]
    restarts: Sequence[RestartRecord]
    sheets: Sequence[Sheet]
    metrics: Mapping[str, pl.DataFrame]
    findings: Sequence[Finding]
    checks: Sequence[tuple[str, float]]  # name and threshold of each
    pair_accuracy: pl.DataFrame | None
    calibration: pl.DataFrame | None
    eval_results: pl.DataFrame | None
    completions: pl.DataFrame | None
    win_pairs: pl.DataFrame | None
    seconds: Mapping[str, float]
    rates: Mapping[str, float]
    export: str

    @cached_property
    def curves(self) -> Curves:
        """The panels of its metrics."""
        return curves({self.name: self.metrics})

    @cached_property
    def gap(self) -> list[Panel]:
        """The panel of ``proxy_and_truth`` where a trained reward model is maximised, else none."""
        if RL not in self.metrics or not learns_from_a_model(self.recipe):
            return []
        known = proxy_and_truth(self.metrics[RL])
        return [] if known is None else [gap_panel("reward", {"": known}, legend=False)]

    @cached_property
    def evaluation(self) -> EvaluationTable | None:
        """The figures of its checkpoints side by side."""
        return of_checkpoints(self.eval_results)

    @cached_property
    def checkpoints(self) -> list[Asked]:
        """Prompts of the test split with the answer of each checkpoint."""
        if self.completions is None:
            return []
        return answers_of_checkpoints(self.completions, self.recipe.evaluate.completions_shown)

    @cached_property
    def pairs(self) -> list[Asked]:
        """Answers that a judge compared."""
        if self.win_pairs is None:
            return []
        return pairs_compared(self.win_pairs, self.recipe.evaluate.completions_shown)

    @property
    def troubles(self) -> list[Trouble]:
        """The findings by check, those that ended the run in front."""
        ordered = sorted(self.findings, key=lambda one: (one.severity != "fatal", one.check))
        found = []
        for _, same in groupby(ordered, key=lambda one: one.check):
            each = sorted(same, key=lambda one: one.began)
            spans = [
                "start" if one.began == 0 else f"{one.began} to {one.ended or 'now, or the end'}"
                for one in each
            ]
            earlier = len(spans) - PERIODS
            before = f"{earlier} earlier periods, then " if earlier > 0 else ""
            found.append(Trouble(each[-1], before + ", ".join(spans[-PERIODS:])))
        return found

    @property
    def silent(self) -> list[tuple[str, float]]:
        """Name and threshold of each check that found nothing."""
        reported = {one.check for one in self.findings}
        return [(name, limit) for name, limit in self.checks if name not in reported]


def gather(
    run: Run,
    ending: Ending | None = None,
    known: dict[str, pl.DataFrame] | None = None,
) -> Facts:
    """Return what is recorded of ``run``, with the stages that it had when they were first read.

    ``ending``: how it ended, where that is known; else the records say what they can. ``known``:
    metrics that were read before (``stage_metrics``). Raises UserError for a run without stages.
    """
    records = run.stages
    newest = next(reversed(records.values()))
    metrics = {stage: run.metrics(stage, known) for stage in TRAINED if stage in records}
    rl = metrics.get(RL, metrics_frame(RL, 0, {}))
    iteration = int(rl["step"].to_numpy().max()) if rl.height else 0
    findings, checks = _findings(run, rl, iteration) if RL in records else ([], [])
    made = {stage: _manifest(run, record) for stage, record in records.items()}
    policy, evaluated, scorer = (made.get(stage) for stage in (RL, "evaluate", "reward_model"))
    completions, eval_results = (
        _table(run, evaluated, name) for name in ("completions", "eval_results")
    )
    rates = token_rates(metrics.get("sft"), rl)
    if evaluated is not None and (rate := evaluated.metadata.get("tokens_per_s")):
        rates["evaluate"] = rate
    dataset = made.get("prepare_data")
    counts = dataset and dataset.metadata.get("counts")  # that of the Python API has none
    state, reason = _state(run, newest, findings, ending)
    given, exported = json.loads(newest.overrides), made.get("export")
    return Facts(
        name=run.name,
        recipe=run.recipe,
        newest=newest,
        overrides={key: json.dumps(value, ensure_ascii=False) for key, value in given.items()},
        state=state,
        reason=reason,
        verdict=verdict(run.store, policy, completions, eval_results) if policy else "",
        began=_minute(next(iter(records.values())).began),
        last=_minute(newest.began, newest.seconds or 0.0),
        iteration=iteration,
        recorded=_recorded(run, policy),
        stages=_stages(run, made),
        restarts=_restarts(run, newest.flow_run_id),
        sheets=datasheet(counts) if counts else [],
        metrics=metrics,
        findings=findings,
        checks=checks,
        pair_accuracy=_table(run, scorer, "pair_accuracy"),
        calibration=_table(run, scorer, "calibration"),
        eval_results=eval_results,
        completions=completions,
        win_pairs=_table(run, evaluated, "win_pairs"),
        seconds=phase_seconds(rl),
        rates=rates,
        export=f"{run.store.root}/{exported.kind}/{exported.key}" if exported else "",
    )


def _state(
    run: Run, newest: StageRecord, findings: Sequence[Finding], ending: Ending | None
) -> tuple[str, str]:
    """Return the run's state, and why it ended where that is known."""
    if ending is not None:
        return ending.state, ending.reason
    if (run.folder / SUMMARY).is_file():
        return "completed", ""
    fatal = [finding for finding in findings if finding.severity == "fatal"]
    if fatal:
        return "failed", f"{fatal[-1].message} ({fatal[-1].check}): {fatal[-1].remedy}"
    where = "in" if newest.sha256 is None else "after"
    return "unfinished", f"It is under way, or was ended, {where} the stage {newest.stage}."


def _stages(run: Run, made: Mapping[str, Manifest | None]) -> list[StageFacts]:
    """Return the stages that ``run`` has come to, in order; ``made``: their manifests."""
    makers = {(row.result_kind, row.result_key): row.stage for row in run.stages.values()}
    planned = {str(stage): reads for stage, reads in stage_parents(run.recipe).items()}
    stages = []
    for row in run.stages.values():
        manifest = made[row.stage]
        parents, rows = ({}, {}) if manifest is None else (manifest.parents, manifest.rows)
        if manifest is None:
            state, producer = (OPEN, row.flow_run_id) if row.sha256 is None else (GONE, "")
            origins = {role: str(stage) for role, stage in planned.get(row.stage, {}).items()}
        else:
            state, producer = CACHED if row.cached else MADE, manifest.producer
            origins = {role: _origin(ref, makers) for role, ref in parents.items()}
        stages.append(
            StageFacts(
                name=row.stage,
                state=state,
                seconds=row.seconds,
                kind=row.result_kind,
                key=row.result_key,
                sha256=row.sha256 or "",
                rows=", ".join(f"{name} {count:,}" for name, count in rows.items()),
                made_from={role: f"{ref.kind}/{ref.key}" for role, ref in parents.items()},
                origins=origins,
                producer=producer,
            )
        )
    return stages


def _origin(ref: ArtifactRef, makers: Mapping[tuple[str, str], str]) -> str:
    """Return the stage that made ``ref``, the number of an iteration, or the artifact's kind."""
    if ref.kind == ITERATIONS:
        return f"iteration {int(ref.key.rpartition('/')[2])}"
    return makers.get((ref.kind, ref.key), ref.kind)


def _recorded(run: Run, policy: Manifest | None) -> Iterations | None:
    """Return the iterations up to now; None where there is none."""
    if RL not in run.stages:
        return None
    if policy is not None and "iteration" in policy.metadata:
        return Iterations(policy.metadata["iteration"], policy.metadata.get("best_iteration"))
    count = max(run.recorded(ITERATIONS), default=0)
    return Iterations(count, None) if count else None


def _manifest(run: Run, record: StageRecord | None) -> Manifest | None:
    """Return the manifest of a stage's result; None where there is none, or it is damaged."""
    if record is None or record.sha256 is None:
        return None
    try:
        return run.store.peek(record.result_kind, record.result_key)
    except ArtifactError:
        return None


def _restarts(run: Run, flow_run_id: str) -> list[RestartRecord]:
    try:
        return restarts_of(run.store, flow_run_id)
    except ArtifactError:
        return []


def _table(run: Run, manifest: Manifest | None, name: str) -> pl.DataFrame | None:
    return None if manifest is None else run.store.glance(manifest.kind, manifest.key, name)


def _findings(
    run: Run, rl: pl.DataFrame, iteration: int
) -> tuple[list[Finding], Sequence[tuple[str, float]]]:
    """Return the findings of the checks over what is recorded, with those that ended the run, and
    name and threshold of each check."""
    diagnosed = diagnose(run.recipe, rl)
    stored = run.store.glance("diagnostics", run.records(RL), "diagnostics")
    # An error ends an iteration before it has metrics; what an earlier attempt died of is over.
    # One of a longer run that continued here is not this run's.
    at_end = [
        row
        for row in ([] if stored is None else stored.to_dicts())
        if row["severity"] == "fatal" and iteration < row["began"] <= run.recipe.rl.iterations
    ]
    return [*diagnosed.findings, *(Finding(**row) for row in at_end)], diagnosed.checks


def _minute(when: str, later_s: float = 0.0) -> str:
    return f"{datetime.fromisoformat(when) + timedelta(seconds=later_s):%Y-%m-%d %H:%M}"
