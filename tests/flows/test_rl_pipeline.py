"""The pipeline on Ray, vLLM and DeepSpeed through a real Prefect server: cache, lineage, guards."""

import json
import os
import shutil
import signal
import tempfile
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from flows.cli import main
from rlcore.cluster.host_settings import RAY, socket_folder
from rlcore.data.preview import example_lines
from rlcore.models.files import model_directory
from rlcore.models.tokenizer import load_tokenizer
from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from schemas.artifacts import ArtifactRef
from tests.flows.commands.test_run import check_summary
from tests.flows.small_run import INLINE, SMALL, model_digests, run_small, summary_of
from tests.listeners import watched
from tests.rlcore.evaluation.snippets import run_snippet

pytestmark = pytest.mark.timeout(600)
ONE = {"rl.iterations": 1, "rl.validation.every": 1}
CHANGED = {**INLINE, **ONE, "export.license": "Apache-2.0"}
ON_RAY = {"hardware.rollout.engine": "vllm", "hardware.rollout.engines": 1}
ON_RAY |= {"hardware.learner.threads": 1, "evaluate.samples": 2}
MADE = (("base_model", "base_model"), ("dataset", "prepare_data"))  # kind, stage
PLANTED = "planted-0f8e7d6c5b4a"
SECRETS = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY")
OPEN_TO_OTHERS = pytest.StashKey[set[str]]()
STARTED = pytest.StashKey[float]()

# SPEC's metrics that follow from the tables of rows: M1, M4 (by recorded seconds), M5, and of M6
# lengths, cut answers, aborts, groups that agree, turns.
RECOMPUTED = """
with t as (
    select *, list_sum(loss_mask::int[]) as tokens from trajectories where records_key = '{key}'),
step as (
    select step, value as wall from metrics where name = 'timing_s/step' and records_key = '{key}'),
groups as (
    select iteration, avg((spread <= 1e-9)::int) as equal from (
        select iteration, uid, max(score) - min(score) as spread from t group by all)
    group by all),
credits as (
    select iteration, avg(value) as mean, max(value) as high, min(value) as low from (
        select iteration, unnest(advantages) as value, unnest(loss_mask) as sampled from t)
    where sampled group by all)
select iteration as step, avg(score) as "critic/score/mean", max(score) as "critic/score/max",
    min(score) as "critic/score/min", avg(score) as "critic/rewards/mean",
    any_value(mean) as "critic/advantages/mean", any_value(high) as "critic/advantages/max",
    any_value(low) as "critic/advantages/min", any_value(equal) as "critic/zero_std_group_fraction",
    avg(tokens) as "response_length/mean", max(tokens) as "response_length/max",
    min(tokens) as "response_length/min", avg(prompt_tokens) as "prompt_length/mean",
    avg((finish_reason = 'length')::int) as "response_length/clip_ratio",
    avg((finish_reason = 'abort')::int) as "response/aborted_ratio",
    avg((finish_reason = 'stop' and trim(response) = '')::int) as "response/empty_ratio",
    avg(len(turn_ends)) as "num_turns/mean", sum(prompt_tokens + tokens) as "perf/total_num_tokens",
    sum(prompt_tokens + tokens) / any_value(wall) as "perf/total_tokens_per_s",
    sum(prompt_tokens + tokens) / any_value(wall) as "perf/throughput",
    1 - count(distinct case when advantages is not null then uid end) / count(distinct uid)
        as "train/filtered_ratio",
    count(distinct key) as "train/num_gen_batches"
from t join step on step.step = t.iteration join groups using (iteration)
    join credits using (iteration)
group by iteration order by iteration
"""


@pytest.fixture(scope="module")
def finished(
    request: pytest.FixtureRequest, prefect_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    directory = tmp_path_factory.mktemp("pipeline")
    request.node.stash[STARTED] = time.time()
    with (
        pytest.MonkeyPatch.context() as environment,
        watched() as request.node.stash[OPEN_TO_OTHERS],
    ):
        for name in SECRETS:
            environment.setenv(name, PLANTED)
        run = run_small(directory, ON_RAY, fresh=True)
    assert run.returncode == 0, run.stdout[-4000:]
    return directory


def test_no_process_of_a_run_listened_to_other_machines(
    request: pytest.FixtureRequest, finished: Path
) -> None:
    """Prefect's server, Ray's processes, vLLM, the learner, the reward workers."""
    module = request.node.getparent(pytest.Module)
    assert module.stash[OPEN_TO_OTHERS] == set()


def test_summary_has_what_people_and_scripts_read(finished: Path) -> None:
    summary = summary_of(finished)
    assert summary["recipe"] == "quickstart"
    assert summary["flow_run_id"]
    assert set(summary["accuracy"]) == {"base", "sft", "rl"}
    assert set(summary["seconds"]) == {
        *("base_model", "prepare_data", "sft", "rl", "evaluate", "export")
    }
    assert {"sft", "rollout", "update", "evaluate"} <= set(summary["tokens_per_s"])
    assert (Path(summary["export"]) / "config.json").is_file()


def test_the_summary_is_what_its_schema_says(finished: Path) -> None:
    check_summary(summary_of(finished))


def test_the_preview_is_what_sft_read(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``rl-pipeline data`` is looked at instead of the run: it must show the run's own tokens."""
    resolved = next((finished / "runs").glob("quickstart-*/recipe.yaml"))
    assert main(["data", str(resolved), "-n", "1000"]) == 0
    printed = capsys.readouterr().out
    store = ArtifactStore(finished / "runs" / "store")
    keys = summary_of(finished)["artifacts"]
    base, dataset = (store.find(kind, keys[stage].rsplit("/", 1)[1]) for kind, stage in MADE)
    assert base is not None
    assert dataset is not None
    tokenizer = load_tokenizer(model_directory(store.directory(base)))
    for table, wanted in (("demonstrations", 512), ("prompts", 64)):
        read = store.table(dataset, table).filter(pl.col("split") == "train")
        shown = ["\n".join(example_lines(row, tokenizer)) for row in read.to_dicts()]
        assert sum(f":\n{text}\n" in printed for text in shown) == len(shown) == wanted


@pytest.mark.slow
def test_iterations_of_actors_are_replayed_bit_for_bit(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished)
    assert main(["replay", "latest", "3", "--from", "1"]) == 0
    printed = capsys.readouterr()
    assert "iterations 1 to 3 of quickstart-" in printed.out
    assert main(["replay", "latest", "9"]) == 2
    assert "has no iteration 9; it has 0 to 4" in capsys.readouterr().err


def test_no_secret_is_in_the_files_of_a_run(request: pytest.FixtureRequest, finished: Path) -> None:
    """Neither a key of the environment nor the server's password: store, logs, Ray, database."""
    home = Path(os.environ["PREFECT_HOME"])
    sessions = [p for p in Path(socket_folder() or "", RAY).glob("session_*") if not p.is_symlink()]
    started = request.node.getparent(pytest.Module).stash[STARTED]
    recent = [path for path in sessions if path.stat().st_mtime >= started]
    assert recent, "Ray left no folder to look into"
    secrets = {PLANTED.encode(), os.environ["PREFECT_API_AUTH_STRING"].encode()}
    holders = {
        path
        for folder in (finished, home, *recent)
        for path in folder.rglob("*")
        if path.is_file() and any(secret in path.read_bytes() for secret in secrets)
    }
    assert holders == {home / "password"}


def test_sampler_and_learner_agree_on_every_iteration(finished: Path) -> None:
    """vLLM and the learner see the same weights, on Ray, after every sync."""
    metrics = query(
        ArtifactStore(finished / "runs" / "store"),
        "select step, value from metrics where name = 'training/rollout_logprobs_gap_max'"
        " and kind = 'metrics' order by step",
    )
    assert metrics["step"].to_list() == [1, 2, 3, 4]
    assert metrics["value"].to_numpy().max() < 1e-4


def test_the_cards_snippet_gives_the_evaluations_greedy_answer(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What vLLM said of the trained weights, transformers says of the exported directory."""
    summary = summary_of(finished)
    export = Path(summary["export"])
    recorded = query(
        ArtifactStore(finished / "runs" / "store"),
        "select response from completions where checkpoint = 'rl' and mode = 'greedy'"
        " order by outcome <> 'ok', length(prompt), uid limit 1",
    )["response"][0]
    answer = run_snippet(export, monkeypatch)
    assert answer == recorded
    assert f"\n# The evaluation recorded: {recorded!r}\n" in (export / "README.md").read_text()


def test_the_model_card_names_all_that_the_model_was_made_from(finished: Path) -> None:
    """And nothing twice: a reader follows it from the export to the base model."""
    summary = summary_of(finished)
    export = Path(summary["export"])
    card = (export / "README.md").read_text()
    of_stage = {stage: Path(uri).name for stage, uri in summary["artifacts"].items()}
    made = {key for stage, key in of_stage.items() if stage != "export"}
    lineage = card.split("## Lineage\n")[1]
    rows = [line for line in lineage.splitlines() if line.startswith("| ")][1:]
    keys = [tuple(row.split(" | ")[1:3]) for row in rows if row.count(" | ") == 3]
    assert len(set(keys)) == len(keys)
    assert made <= {key for _, key in keys}
    assert {"rollouts", "rewards", "advantages", "iterations"} <= {kind for kind, _ in keys}
    assert "| small\\_reward.py |" in lineage
    assert "* commit: " in card
    assert f"the policy after SFT, with which RL started | policy | {of_stage['sft']}" in card
    assert "reinforcement learning on a reward function." in " ".join(card.split())
    assert "| tests.flows.small\\_reward:digits | 1 | |" in card
    assert "* name: quickstart\n" in card
    assert f"* torch: {version('torch').split('+')[0]}\n" in card
    assert "| arithmetic | train | train | 64 |" in card
    modes = {path.name: path.stat().st_mode & 0o777 for path in export.iterdir()}
    assert set(modes.values()) == {0o666 & ~_umask()}, modes


def _umask() -> int:
    """Return the umask as a new file shows it; reading it would change it for other threads."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "new").touch()
        return 0o666 & ~(Path(folder) / "new").stat().st_mode


def test_the_run_page_has_the_datasheet(finished: Path) -> None:
    """Which rows were left out is seen while the run trains, and after a dataset from cache."""
    run = ArtifactFilterFlowRunId.model_validate({"any_": [summary_of(finished)["flow_run_id"]]})
    with get_client(sync_client=True) as client:
        shown = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=run))
    (data,) = (str(artifact.data) for artifact in shown if artifact.key == "quickstart-data")
    assert "| train | arithmetic | train | 64 |" in data


def lineage_of(subject: str, folder: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Return exit code, document and errors of ``rl-pipeline lineage`` in ``folder``."""
    out, errors = StringIO(), StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(errors):
        code = main(["lineage", subject, "--format", "json", *options])
    return code, json.loads(out.getvalue()), errors.getvalue()


def test_lineage_leads_from_export_to_every_rollout_and_back(
    finished: Path, tmp_path: Path
) -> None:
    """Which rows, files, recipe and code made this model is one command."""
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder, symlinks=True)
    store = ArtifactStore(folder / "runs" / "store")
    exported = store.keys("export")[0]
    model = folder / "runs" / "store" / "export" / exported / "model"
    code, document, errors = lineage_of(str(model), folder)
    assert (code, errors) == (0, "")
    assert (document["artifacts"][0]["kind"], document["artifacts"][0]["key"]) == (
        "export",
        exported,
    )
    found = {(row["kind"], row["key"]) for row in document["artifacts"]}
    records = document["artifacts"][0]["parents"]["policy"].partition("/")[2]
    best = store.manifest(_ref(store, "policy", records)).metadata["best_iteration"]
    for kind in ("rollouts", "rewards", "advantages"):
        drawn = {(kind, key) for key in store.keys(kind, f"{records}/")}
        behind = {pair for pair in drawn if int(pair[1][-6:]) <= best}
        assert behind <= found
    assert (
        document["recipes"][0]["text"] == (folder / "runs" / "latest" / "recipe.yaml").read_text()
    )
    assert all("commit" in state for state in document["code"])
    assert "tests.flows.small_reward:digits" in {row["source"] for row in document["inputs"]}
    dataset = document["artifacts"][0]["parents"]["dataset"]
    code, forward, _ = lineage_of(dataset, folder, "--forward")
    assert code == 0
    assert ("export", exported) in {(row["kind"], row["key"]) for row in forward["artifacts"]}


def test_one_byte_flipped_anywhere_in_the_chain_is_named(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder, symlinks=True)
    store = folder / "runs" / "store"
    exported = ArtifactStore(store).keys("export")[0]
    _, whole, _ = lineage_of(f"export/{exported}", folder)
    for row in whole["artifacts"]:
        place = store / row["kind"] / row["key"]
        path = next(
            p for p in sorted(place.rglob("*")) if p.is_file() and p.name != "manifest.json"
        )
        content = path.read_bytes()
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        code, document, errors = lineage_of(f"export/{exported}", folder)
        path.write_bytes(content)
        problems = [(r["kind"], r["key"]) for r in document["artifacts"] if r["problem"]]
        assert (code, problems) == (1, [(row["kind"], row["key"])])
        assert f"{row['kind']}/{row['key']}" in errors
    assert lineage_of(f"export/{exported}", folder)[0] == 0


def _ref(store: ArtifactStore, kind: str, key: str) -> ArtifactRef:
    ref = store.find(kind, key)
    assert ref is not None
    return ref


def test_recorded_metrics_are_those_of_the_recorded_rows(finished: Path) -> None:
    """The trainer's own figures, checked against the raw tables by SQL that shares no code."""
    store = ArtifactStore(finished / "runs" / "store")
    whole = "select records_key from trajectories group by all order by max(iteration) desc limit 1"
    key = query(store, whole).item()
    made = query(store, RECOMPUTED.format(key=key))
    recorded = query(store, f"select step, name, value from metrics where records_key = '{key}'")
    known = {(step, name): value for step, name, value in recorded.iter_rows()}
    assert made["step"].to_list() == [1, 2, 3, 4]
    for row in made.iter_rows(named=True):
        step = row.pop("step")
        for name, value in row.items():
            assert known[step, name] == pytest.approx(float(value), rel=1e-5, abs=1e-6), (
                step,
                name,
            )


def test_unchanged_recipe_is_all_cached(finished: Path) -> None:
    again = run_small(finished, ON_RAY)
    assert again.returncode == 0, again.stdout[-4000:]
    assert summary_of(finished)["cached"] == [
        *("base_model", "prepare_data", "sft", "rl", "evaluate", "export")
    ]
    assert "Ray" not in again.stdout


def test_the_plan_of_what_was_run_has_nothing_to_run(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished)
    words = [word for k, v in (SMALL | ON_RAY).items() for word in ("-o", f"{k}={json.dumps(v)}")]
    assert main(["run", "quickstart", *words, "--dry-run"]) == 0
    plan = capsys.readouterr().out
    rows = [line.split() for line in plan.partition("What would run\n")[2].splitlines()[:6]]
    made = ("base_model", "prepare_data", "sft", "rl", "evaluate", "export")
    assert rows == [[stage, "cached"] for stage in made]
    assert "\nDisk\n  store: " in plan


@pytest.mark.slow
def test_hardware_change_reuses_all(finished: Path) -> None:
    """What Ray and vLLM have made serves a run of one process without them."""
    moved = run_small(finished, INLINE)
    assert moved.returncode == 0, moved.stdout[-4000:]
    assert len(summary_of(finished)["cached"]) == 6


@pytest.mark.slow
def test_rl_change_reuses_data_and_sft(finished: Path) -> None:
    changed = run_small(finished, CHANGED)
    assert changed.returncode == 0, changed.stdout[-4000:]
    summary = summary_of(finished)
    assert summary["cached"] == ["base_model", "prepare_data", "sft"]
    card = (Path(summary["export"]) / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["license"] == "apache-2.0"


@pytest.mark.slow
def test_damaged_artifact_is_made_again_not_used(finished: Path) -> None:
    """A cache hit is verified before use."""
    before = summary_of(finished)
    export = Path(before["export"])
    weights = export / "model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-7])
    again = run_small(finished, CHANGED)
    assert again.returncode == 0, again.stdout[-4000:]
    assert "is run again" in again.stdout
    assert "export" not in summary_of(finished)["cached"]


@pytest.mark.slow
def test_lost_metrics_cost_their_figures_only(finished: Path) -> None:
    """A finished run's curves are written once: a rerun that needed them would fail forever."""
    store = ArtifactStore(finished / "runs" / "store")
    sft = summary_of(finished)["artifacts"]["sft"].rsplit("/", 1)[1]
    for key in store.keys("metrics", f"{sft}/"):
        store.discard("metrics", key)
    again = run_small(finished, INLINE)
    assert again.returncode == 0, again.stdout[-4000:]
    assert len(summary_of(finished)["cached"]) == 6
    assert "sft" not in summary_of(finished)["tokens_per_s"]


@pytest.mark.slow
def test_killed_on_ray_and_rerun_gives_the_same_weights(
    prefect_server: str, finished: Path, tmp_path: Path
) -> None:
    """New actors, a new vLLM, the same samples: what was not yet recorded is drawn again alike."""
    killed = run_small(tmp_path, ON_RAY, kill_at="update")
    assert killed.returncode == -signal.SIGKILL, killed.stdout[-4000:]
    resumed = run_small(tmp_path, {**ON_RAY, "hardware.rollout.engine": "auto"})
    assert resumed.returncode == 0, resumed.stdout[-4000:]
    assert "continuing after iteration 2" in resumed.stdout
    assert "rollout engine: vllm (auto: what this run has" in resumed.stdout
    uninterrupted = model_digests(finished, "policy")
    assert model_digests(tmp_path, "policy").items() <= uninterrupted.items()
