"""A collection that is killed anywhere: artifacts are whole or absent, roots lose nothing."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rlcore.results.lineage import trace
from rlcore.results.named_artifacts import subject
from rlcore.results.retention import Plan, RetentionSettings, collect, leftovers, make_plan
from rlcore.results.roots import runs_of
from rlcore.results.run import record_stage
from rlcore.store.artifacts import ArtifactStore, Lineage
from tests.rlcore.conftest import bucket, s3_server
from tests.rlcore.results.stores import URL, Filled, put, whole

__all__ = ["bucket", "s3_server"]  # fixtures
pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[3]
GOING = 2  # oldest runs, which are not kept

# Imports once, then forks one collector per copy of the store before any thread is started;
# collector n dies at its n-th step: before or after a system call that changes the store.
COLLECTORS = """
import os, pathlib, shutil, signal, sys
import fsspec
import polars
import rlcore.store.tables, schemas.tables, schemas.artifacts
from rlcore.results.retention import collect
from rlcore.results.retention import RetentionSettings, make_plan
from rlcore.store.artifacts import ArtifactStore

store, copies, first, stride, most = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
settings = RetentionSettings(keep_runs=int(sys.argv[6]), keep_champions=0, least_age_h=0)
steps = 0

def die_at(function, limit):
    def step():
        global steps
        steps += 1
        if steps == limit:
            os.kill(os.getpid(), signal.SIGKILL)
    def hooked(*args, **kwargs):
        step()
        result = function(*args, **kwargs)
        step()
        return result
    return hooked

def copied(url, top):
    fs, source = fsspec.url_to_fs(url)
    target = fsspec.url_to_fs(top)[1]
    for path in fs.find(source):
        fs.pipe_file(target + path.removeprefix(source), fs.cat_file(path))

def collected(root, limit):
    if "://" in root:
        if copies:
            copied(sys.argv[1], root)
        places = [(fsspec.url_to_fs(root)[0], ("rm_file", "pipe_file"))]
    else:
        calls = ("unlink", "remove", "rmdir", "rename", "replace", "link", "mkdir")
        places = [(os, calls), (pathlib.Path, ("write_bytes", "touch"))]
    for place, names in places:
        for name in names:
            setattr(place, name, die_at(getattr(place, name), limit))
    store = ArtifactStore(root)
    collect(store, make_plan(store, settings), settings, print)
    os._exit(0)

code, limit = -9, first
while code == -9 and limit < most:
    root = copies.format(limit) if copies else store
    if copies and "://" not in root:
        shutil.copytree(store, root, copy_function=os.link)
    pid = os.fork()
    if not pid:
        collected(root, limit)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(limit, code, flush=True)
    limit += stride
"""


def settings_for(runs: int) -> RetentionSettings:
    return RetentionSettings(keep_runs=runs - GOING, keep_champions=0, least_age_h=0)


NOW = settings_for(4)


def killed(
    root: str,
    copies: str,
    stride: int,
    settings: RetentionSettings,
    *,
    first: int = 1,
    most: int = 10_000,
) -> list[int]:
    """Return the steps that a collector was killed at; the last one ended by itself."""
    command = [sys.executable, "-c", COLLECTORS, root, copies]
    command += [str(number) for number in (first, stride, most, settings.keep_runs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    ends = [line.split() for line in done.stdout.splitlines() if line[:1].isdecimal()]
    assert [code for _, code in ends][:-1] == ["-9"] * (len(ends) - 1), done.stderr
    assert ends[-1][1] == "0" or int(ends[-1][0]) + stride >= most, done.stderr
    return [int(step) for step, _ in ends]


def filled_with(runs: int, folder: Path) -> Filled:
    """Return a store of runs; the first, which is not kept, is a former champion."""
    made = Filled(folder / "store", folder / "files", iterations=1)
    for number in range(1, runs + 1):
        made.add_run(number)
    export = made.store.find("export", "sums01")
    assert export is not None
    made.add_champion("sums", 1, export)
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return filled_with(4, tmp_path_factory.mktemp("made"))


def gc(store: ArtifactStore, settings: RetentionSettings = NOW) -> Plan:
    plan = make_plan(store, settings)
    collect(store, plan, settings, pytest.fail)
    return plan


def check_kills(made: Filled, settings: RetentionSettings, stride: int, folder: Path) -> None:
    """Kill a collector at each ``stride``-th step, and finish its work."""
    planned = make_plan(made.store, settings)
    needed = planned.manifests.keys() - planned.removed.keys()
    assert len(planned.removed) == GOING * 5
    steps = killed(str(made.store.root), str(folder / "store{}"), stride, settings)
    counts = set()
    for step in steps:
        store = ArtifactStore(folder / f"store{step}")
        found = whole(store)
        counts.add(len(found))
        assert needed <= found <= planned.manifests.keys(), step
        export = subject("champions/sums/1", store.root)[1]
        assert trace(store, export).problems == [], step
        gc(store, settings)
        assert whole(store) == needed, step
        assert leftovers(store) == {}
        assert not list(Path(store.root, ".staging").iterdir())
        shutil.rmtree(store.root)
    assert len(counts) >= min(len(steps) // 2, len(planned.removed)), "it dies all along the way"


@pytest.mark.slow
def test_kill_9_leaves_whole_artifacts_and_all_that_roots_need(
    made: Filled, tmp_path: Path
) -> None:
    """A half-removed policy that passes for whole, or a champion's that is gone, is lost work."""
    check_kills(made, NOW, 37, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kill_9_at_every_step_of_a_collection_of_40_runs(tmp_path: Path) -> None:
    check_kills(filled_with(40, tmp_path / "made"), settings_for(40), 1, tmp_path)


def filled_bucket(bucket: str, folder: Path, tables: int) -> tuple[Filled, set[str], set[str]]:
    """Return a bucket of one run and of tables that nothing needs, and places needed and not."""
    filled = Filled(bucket, folder, iterations=1)
    for number in range(tables):
        put(filled.store, "rollouts", f"x{number % 2}/{number:06d}")
    put(filled.store, "pins", "dataset/d", pinned=filled.dataset)
    plan = make_plan(filled.store, NOW)
    assert len(plan.removed) == tables
    return filled, plan.manifests.keys() - plan.removed.keys(), set(plan.removed)


@pytest.mark.parametrize("where", ["memory", pytest.param("s3", marks=pytest.mark.slow)])
def test_in_a_bucket_what_was_goes_first_into_a_document_and_the_manifest_before_the_files(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A kill between any two requests leaves no file that passes for an artifact."""
    root = "memory://collected" if where == "memory" else request.getfixturevalue("bucket")
    filled, needed, gone = filled_bucket(root, tmp_path / "files", 3)
    fs, top = fsspec.url_to_fs(root)
    requests: list[str] = []
    for name in ("rm_file", "pipe_file"):
        call = getattr(fs, name)

        def noted(path: str, *args: Any, call: Any = call, **kwargs: Any) -> Any:
            requests.append(path)
            return call(path, *args, **kwargs)

        monkeypatch.setattr(fs, name, noted)
    gc(filled.store)
    requests = [path.removeprefix(f"{top}/") for path in requests]
    for place in gone:
        group = place.split("/")[1]
        document = next(i for i, path in enumerate(requests) if f".pruned/{group}~" in path)
        manifest = requests.index(f"{place}/manifest.json")
        assert document < manifest < requests.index(f"{place}/metrics.parquet")
    assert whole(filled.store) == needed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_in_a_bucket_kill_9_at_every_request_leaves_whole_artifacts(
    bucket: str, tmp_path: Path
) -> None:
    """Each collector has a copy of its own, and dies before or after one of its requests."""
    _, needed, gone = filled_bucket(bucket, tmp_path / "files", 3)
    steps = killed(bucket, bucket + "{}", 1, NOW)
    assert len(steps) > 2 * 2 * len(gone), "manifest and table of each, before and after"
    counts = set()
    for step in steps:
        store = ArtifactStore(f"{bucket}{step}", tmp_path / "cache")
        found = whole(store)
        assert needed <= found <= needed | gone, step
        counts.add(len(found - needed))
        gc(store)
        assert whole(store) == needed, step
        assert leftovers(store) == {}
    assert counts == set(range(len(gone) + 1)), "they die all along the way"


def test_lineage_of_a_pruned_champion_names_its_input_files(made: Filled, tmp_path: Path) -> None:
    """What a deployed copy of it was trained on is asked for years later."""
    filled = made.copy(tmp_path / "store")
    gc(filled.store)
    found = trace(filled.store, subject("champions/sums/1", filled.store.root)[1])
    assert found.problems == []
    assert [row["url"] for row in found.inputs] == [URL]
    notes = {node.ref.kind: node.note or "" for node in found.nodes}
    assert notes["policy"].startswith("pruned on 20")
    assert notes["policy"].endswith(": no root needs it")
    assert notes["dataset"] == notes["champions"] == ""
    (gone,) = subject("export/sums01", filled.store.root)[1]
    assert trace(filled.store, [gone]).inputs == found.inputs


def test_what_is_made_again_is_live_again(made: Filled, tmp_path: Path) -> None:
    filled = made.copy(tmp_path / "store")
    gc(filled.store)
    again = put(filled.store, "rollouts", "sums01/000001", dataset=filled.dataset)
    (node, *_) = trace(filled.store, [again]).nodes
    assert (node.note, node.problem) == (None, None)
    gc(filled.store)
    assert filled.store.find("rollouts", "sums01/000001") is None


def test_a_run_that_is_retried_meanwhile_keeps_its_results(made: Filled, tmp_path: Path) -> None:
    """It is one of the last again, though its record is not a new one."""
    filled = made.copy(tmp_path / "store")
    plan = make_plan(filled.store, NOW)
    newest, *_, oldest = runs_of(filled.store)
    assert (oldest.name, newest.name) == ("sums-00000001", "sums-00000004")
    again = replace(oldest.stages[0], began="2026-01-02T00:00:00+00:00")
    record_stage(filled.store, again, Lineage("r", "c"))
    collect(filled.store, plan, NOW, pytest.fail)
    there = whole(filled.store)
    assert {"policy/sums01", "export/sums01", "policy/sums04"} <= there
    assert "policy/sums02" not in there


def test_what_becomes_needed_meanwhile_stays(made: Filled, tmp_path: Path) -> None:
    """A run that begins while a collection continues finds its results."""
    filled = made.copy(tmp_path / "store")
    plan = make_plan(filled.store, NOW)
    policy = filled.store.find("policy", "sums02")
    assert policy is not None
    put(filled.store, "pins", "policy/sums02", pinned=policy)
    with filled.store.hold("sums03"):
        other = ArtifactStore(filled.store.root)
        lines: list[str] = []
        collect(other, plan, NOW, lines.append)
    there = whole(filled.store)
    assert "policy/sums02" in there
    assert {"policy/sums03", "export/sums03"} <= there
    assert "export/sums02" not in there
    assert "policy/sums01" not in there
