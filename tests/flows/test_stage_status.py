"""The dry run counts what a run would do: what the store holds of it costs nothing."""

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import pytest
from prefect import flow

from flows.cli import main
from flows.paths import RECIPES
from flows.rl_loop import rl
from rlcore.learner.checkpoints import KIND
from rlcore.recipes.load import load_recipe
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.versions import VERSION
from schemas.artifacts import MANIFEST_VERSION, ArtifactRef
from tasks.base_model import base_model
from tasks.prepare_data import prepare_data
from tasks.runtime.earlier_runs import IDENTITY
from tasks.runtime.keys import StageKeys
from tasks.runtime.run import open_run
from tasks.sft import sft
from tests.flows.small_run import INLINE, ROOT, SMALL
from tests.rlcore.conftest import bucket, s3_server

__all__ = ["bucket", "s3_server"]  # fixtures
pytestmark = pytest.mark.timeout(120)
FEW = {**SMALL, **INLINE}
FIRST = ["base_model", "prepare_data"]


@flow(name="first-stages")
def first_stages(overrides: dict[str, Any]) -> dict[str, ArtifactRef]:
    with open_run("quickstart", overrides, recipes=RECIPES) as run:
        base = base_model(run)
        return {"base_model": base, "dataset": prepare_data(run, base_model=base)}


@pytest.fixture
def made(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, ArtifactRef]:
    """The first two stages of the small recipe, in the store of the working directory."""
    monkeypatch.chdir(tmp_path)
    return first_stages(FEW)


def words(overrides: dict[str, Any]) -> list[str]:
    settings = [word for k, v in overrides.items() for word in ("-o", f"{k}={json.dumps(v)}")]
    return ["run", "quickstart", *settings, "--dry-run"]


def planned(
    capsys: pytest.CaptureFixture[str], *options: str, **overrides: Any
) -> tuple[list[str], str]:
    """Return the stages that a dry run says are in the store, and all of it."""
    changes = {path.replace("__", "."): value for path, value in overrides.items()}
    assert main([*words(FEW | changes), *options]) == 0
    plan = capsys.readouterr().out
    stages = plan.partition("What would run\n")[2].partition("\n\n")[0].splitlines()
    return [line.split()[0] for line in stages if line.split()[1] == "cached"], plan


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Return what would change if anything below ``folder`` were written."""
    files = {path: path.lstat() for path in [folder, *folder.rglob("*")]}
    return {str(path): (stat.st_mtime_ns, stat.st_size) for path, stat in files.items()}


def test_exactly_what_was_made_is_in_the_store(
    made: dict[str, ArtifactRef], capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(Path())
    found, plan = planned(capsys)
    assert found == FIRST
    disk = [line.split()[0] for line in plan.partition("\nDisk\n")[2].splitlines()[:5]]
    assert disk == ["sft", "rl", "evaluate", "export", "in"]
    assert planned(capsys, data__max_prompt_tokens=70)[0] == ["base_model"]
    assert planned(capsys, data__sources__0__train=65)[0] == []
    assert planned(capsys, seed=5)[0] == []
    assert planned(capsys, rl__iterations=9)[0] == FIRST
    assert planned(capsys, store="elsewhere")[0] == []
    assert contents(Path()) == before, "a dry run only reads"


HEAVY = ["prefect", "pandas", "torch", "transformers", "ray", "vllm"]
LOOKS = f"""import sys
from flows.cli import main
assert main(["status", *sys.argv[2:-1]]) == 0
assert not set({HEAVY}) & set(sys.modules), "imported for what is in the store"
assert main(sys.argv[1:]) == 0
assert "prefect" not in sys.modules, "imported for a plan"
"""


def test_who_asks_what_is_there_waits_for_no_library(
    made: dict[str, ArtifactRef], tmp_path: Path
) -> None:
    """A fully cached status took eight seconds; and no server may be started for one."""
    before = contents(Path())
    done = subprocess.run(
        [sys.executable, "-c", LOOKS, *words(FEW)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    status, _, plan = done.stdout.partition("\nexport ")
    assert [line.split()[1] for line in status.splitlines()[:2]] == ["cached", "cached"]
    assert "\n  base_model   cached\n" in plan
    assert contents(Path()) == before


def test_a_damaged_artifact_is_counted_and_left_alone(
    made: dict[str, ArtifactRef], capsys: pytest.CaptureFixture[str]
) -> None:
    (config,) = Path(made["base_model"].uri).rglob("config.json")
    config.unlink()
    before = contents(Path())
    found, table = planned(capsys)
    assert found == []
    (line,) = (line for line in table.splitlines() if "base_model" in line and "made again" in line)
    assert line.endswith("config.json is missing")
    assert contents(Path()) == before


def test_a_store_that_cannot_be_read_is_named(
    made: dict[str, ArtifactRef], capsys: pytest.CaptureFixture[str]
) -> None:
    """That a newer version wrote into the store is no reason for no plan."""
    manifest = Path(made["base_model"].uri) / "manifest.json"
    document = manifest.read_text().replace(f'"{MANIFEST_VERSION}"', '"manifest/v99"')
    assert "v99" in document
    manifest.unlink()
    manifest.write_text(document)
    found, table = planned(capsys)
    assert found == []
    assert "so every stage is counted: " in table
    assert "newer than" in table


def stopped(store: ArtifactStore, keys: StageKeys, step: int, folder: Path, code: str = "") -> None:
    """Put a checkpoint of a run ``keys`` into the store, as its stage would."""
    made_by = {IDENTITY: keys.identity, VERSION: keys.parts.code[VERSION]}
    lineage = Lineage("r", code or keys.code, metadata=made_by)
    store.put(KIND, f"{keys.key}/{step:06d}", directory=folder, lineage=lineage)


@pytest.mark.slow
def test_a_plan_says_where_a_half_done_run_goes_on(
    made: dict[str, ArtifactRef], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recipe = load_recipe("quickstart", FEW, directory=RECIPES)
    store = ArtifactStore(recipe.store)
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "weights").write_text("1")

    keys = sft.declared.keys(recipe, made)
    stopped(store, keys, 4, folder)
    stopped(store, keys, 8, folder)
    found, table = planned(capsys)
    assert found == FIRST
    assert "continues at 9\n" in table

    warm = store.put(sft.kind, keys.key, directory=folder, lineage=Lineage("r", "c"))
    keys = rl.declared.keys(recipe, {"dataset": made["dataset"], "policy": warm})
    other = keys._replace(key="0" * 32, code="other")
    stopped(store, other, 3, folder)
    found, table = planned(capsys)
    assert found == [*FIRST, "sft"]
    assert "stopped after iteration 3 with other code: a run is refused without --acc" in table
    assert "continues at 4 (with other code)\n" in planned(capsys, "--accept-code")[1]
    stopped(store, keys, 2, folder)
    assert "continues at 3\n" in planned(capsys)[1], "its own checkpoints count"
    store.put(rl.kind, keys.key, directory=folder, lineage=Lineage("r", "c"))
    assert planned(capsys)[0] == [*FIRST, "sft", "rl"]


@pytest.mark.slow
def test_a_bucket_is_looked_into_as_a_folder_is(
    prefect_server: str,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert planned(capsys, store=bucket)[0] == []
    first_stages({**FEW, "store": bucket})
    assert planned(capsys, store=bucket)[0] == FIRST
    assert planned(capsys, store="s3://no-such-bucket/runs")[0] == []


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(403)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def test_a_bucket_that_refuses_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan can be made where the credentials of the run are not."""
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        found, table = planned(capsys, store="s3://nobody/runs")
        server.shutdown()
    assert found == []
    assert "so every stage is counted: could not list s3://nobody/runs: Perm" in table
