"""What a report says of a run, gathered from its records: stages, figures, findings, origin."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import polars as pl

from rlcore.diagnostics.evidence import Evidence
from rlcore.diagnostics.watch import Finding, diagnose
from rlcore.results.folders import SUMMARY
from rlcore.results.run import Run, StageRecord
from rlcore.results.summary import phase_seconds, token_rates
from rlcore.results.verdict import verdict
from rlcore.store.artifacts import ArtifactStore
from rlcore.store.checks import ArtifactError
from schemas.artifacts import Manifest

STAGES = ("base_model", "prepare_data", "sft", "reward_model", "rl", "evaluate", "export")
TRAINED = ("sft", "reward_model", "rl")  # stages with metrics
RL = "rl"
PHASES = {
    "gen": "rollout",
    "reward": "reward",
    "adv": "advantage",
    "update_actor": "update",
    "update_critic": "update of the critic",
    "sync": "sync",
    "testing": "validation",
    "save_checkpoint": "checkpoint",
    "outside": "outside the phases",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, by whoever knows: e.g. ("cancelled", "asked for by ...")."""

    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the run; ``made_from``: role -> name of an artifact. ``producer``: the flow run
    that made the artifact, empty where it is not known."""

    name: str
    state: str
    seconds: float | None
    artifact: str
    sha256: str
    rows: str
    made_from: Mapping[str, str]
    producer: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a run now. Times are ISO 8601, UTC. ``verdict``: empty before RL ended."""

    name: str
    flow_run_id: str
    recipe: str
    description: str
    recipe_digest: str
    seed: int
    overrides: Mapping[str, str]
    state: str
    reason: str
    verdict: str
    began: str
    last: str
    iteration: int
    iterations: int
    stages: Sequence[Stage]
    metrics: Mapping[str, pl.DataFrame]
    findings: Sequence[Finding]
    checks: Sequence[tuple[str, float]]  # name and threshold of each
    evaluation: pl.DataFrame | None
    completions: pl.DataFrame | None
    seconds: Mapping[str, float]
    rates: Mapping[str, float]


def gather(
    run: Run,
    ending: Ending | None = None,
    metrics: Mapping[str, pl.DataFrame] | None = None,
) -> Facts:
    """Return what is recorded of ``run`` up to now.

    ``ending``: how it ended, where that is known; else the records say what they can. ``metrics``:
    those of each stage, from who has read them already. Raises UserError for a run without stages.
    """
    run = Run(run.folder, run.recipe, run.store)  # what it has read before may be out of date
    records = run.stages
    newest = next(reversed(records.values()))
    if metrics is None:
        metrics = {stage: run.metrics(stage) for stage in TRAINED if stage in records}
    rl = metrics.get(RL, pl.DataFrame(schema={"step": pl.Int64}))
    iteration = int(rl["step"].to_numpy().max()) if rl.height else 0
    findings, checks = _findings(run, rl, iteration) if RL in records else ([], [])
    evaluated = _manifest(run, records.get("evaluate"))
    policy = _manifest(run, records.get(RL))
    tables = [_table(run, evaluated, name) for name in ("completions", "eval_results")]
    rates = token_rates(metrics.get("sft"), rl) if rl.height else {}
    state, reason = _state(run, newest, findings, ending)
    return Facts(
        name=run.name,
        flow_run_id=newest.flow_run_id,
        recipe=newest.recipe,
        description=run.recipe.description,
        recipe_digest=newest.recipe_digest,
        seed=newest.seed,
        overrides={
            key: json.dumps(value, ensure_ascii=False)
            for key, value in json.loads(newest.overrides).items()
        },
        state=state,
        reason=reason,
        verdict="" if policy is None else verdict(run.store, policy, *tables),
        began=_minute(next(iter(records.values())).began),
        last=_minute(newest.began, newest.seconds or 0.0),
        iteration=iteration,
        iterations=run.recipe.rl.iterations,
        stages=[_stage(run, record) for record in records.values()],
        metrics=metrics,
        findings=findings,
        checks=checks,
        evaluation=tables[1],
        completions=tables[0],
        seconds={PHASES.get(n, n): s for n, s in phase_seconds(rl).items() if n != "step"}
        if rl.height
        else {},
        rates=rates,
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
    return "unfinished", f"It goes on, or was ended, {where} the stage {newest.stage}."


def _stage(run: Run, record: StageRecord) -> Stage:
    manifest = _manifest(run, record)
    state = "under way, or ended here"
    if record.sha256 is not None:
        state = "from the store" if record.cached else "made by this run"
    made = {} if manifest is None else manifest.parents
    return Stage(
        name=record.stage,
        state=state,
        seconds=record.seconds,
        artifact=f"{record.result_kind}/{record.result_key}",
        sha256=record.sha256 or "",
        rows="" if manifest is None else ", ".join(f"{n} {c:,}" for n, c in manifest.rows.items()),
        made_from={role: f"{ref.kind}/{ref.key}" for role, ref in made.items()},
        producer="" if manifest is None else manifest.producer,
    )


def _manifest(run: Run, record: StageRecord | None) -> Manifest | None:
    """Return the manifest of a stage's result; None where there is none, or it is damaged."""
    if record is None or record.sha256 is None:
        return None
    try:
        return run.store.peek(record.result_kind, record.result_key)
    except ArtifactError:
        return None


def _table(run: Run, manifest: Manifest | None, name: str) -> pl.DataFrame | None:
    if manifest is None or name not in manifest.schema_versions:
        return None
    try:
        return pl.read_parquet(run.store.file(manifest, f"{name}.parquet"))
    except ArtifactError:
        return None


def _findings(
    run: Run, rl: pl.DataFrame, iteration: int
) -> tuple[list[Finding], Sequence[tuple[str, float]]]:
    """Return the findings of the checks over what is recorded, with those that ended the run, and
    name and threshold of each check."""
    records = run.records(RL)
    diagnosed = diagnose(run.recipe, rl, Evidence(ArtifactStore(run.store.root), records))
    try:
        ref = run.store.find("diagnostics", records)
        stored = [] if ref is None else run.store.table(ref, "diagnostics").to_dicts()
    except ArtifactError:
        stored = []
    # An error ends an iteration before it has metrics; what an earlier attempt died of is over.
    # One of a longer run that went on here is not this run's.
    at_end = [
        row
        for row in stored
        if row["severity"] == "fatal" and iteration < row["began"] <= run.recipe.rl.iterations
    ]
    return [*diagnosed.findings, *(Finding(**row) for row in at_end)], diagnosed.checks


def _minute(when: str, later_s: float = 0.0) -> str:
    moment = datetime.fromisoformat(when) + timedelta(seconds=later_s)
    return f"{moment:%Y-%m-%d %H:%M}"
