"""``rl-pipeline store``: says what would go, removes it when told; what is left still answers."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flows import local
from flows.cli import main
from flows.paths import ROOT
from rlcore.rl.records import RecordedIterations
from rlcore.store.artifacts import ArtifactStore
from rlcore.store.tombstones import PrunedArtifact
from schemas.errors import UserError
from tests.conftest import HOME
from tests.rlcore.report.made import MadeRun
from tests.rlcore.results.stores import Filled, put

pytestmark = pytest.mark.timeout(120)
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "store.schema.json").read_text())
NOW = ("--least-age-h", "0")
Printed = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    """The store of two runs, in the working directory."""
    monkeypatch.chdir(tmp_path)
    filled = Filled(tmp_path / "runs" / "store", tmp_path / "files")
    filled.add_run(1)
    filled.add_run(2)
    return filled.store


def rows(out: str) -> list[dict[str, Any]]:
    found = json.loads(out)
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    return found


def test_nothing_goes_before_it_is_asked_for(store: ArtifactStore, capsys: Printed) -> None:
    asked = ["store", "gc", "--keep-runs", "1", *NOW]
    assert main(asked) == 0
    said = capsys.readouterr()
    assert "sums01/ (2)" in said.out
    assert "would remove 7 artifacts" in said.err
    assert said.err.endswith("nothing was removed: add --yes\n")
    assert main([*asked, "--format", "json"]) == 0
    named = rows(capsys.readouterr().out)
    assert {row["key"].partition("/")[0] for row in named} == {"sums01"}
    assert store.find("policy", "sums01") is not None
    assert main([*asked, "--yes"]) == 0
    assert "removed 7 artifacts" in capsys.readouterr().err
    assert store.find("policy", "sums01") is None
    assert store.find("policy", "sums02") is not None
    assert main([*asked, "--yes", "--format", "csv"]) == 0
    assert capsys.readouterr().out == "kind,key,run,bytes,made,reason\n"


def test_usage_says_what_would_go(store: ArtifactStore, capsys: Printed) -> None:
    asked = ["store", "usage", "--keep-runs", "1", *NOW, "--format", "json"]
    assert main(asked) == 0
    said = capsys.readouterr()
    kinds = {row["kind"]: row for row in rows(said.out)}
    assert kinds["policy"]["artifacts"] == 2
    assert kinds["policy"]["reclaimable"] == kinds["policy"]["bytes"] // 2 > 0
    assert (kinds["runs"]["reclaimable"], kinds["runs"]["stays"]) == (0, "always")
    assert "store gc would remove" in said.err
    assert main([*asked, "--by", "run"]) == 0
    newest, oldest = rows(capsys.readouterr().out)
    assert (newest["kept"], oldest["kept"]) == (True, False)
    assert newest["reclaimable"] == 0 < newest["alone"] < newest["bytes"]
    assert oldest["reclaimable"] > 0
    assert main(["store", "usage", "--store", "elsewhere"]) == 2
    assert "--store elsewhere: there is no such folder" in capsys.readouterr().err
    assert store.kinds()


def test_a_pin_outlives_a_collection(store: ArtifactStore, capsys: Printed) -> None:
    gc = ["store", "gc", "--keep-runs", "1", "--yes", *NOW]
    assert main(["store", "pin", "policy/sums01"]) == 0
    assert main(gc) == 0
    assert store.find("policy", "sums01") is not None
    assert store.find("rollouts", "sums01/000001") is not None
    assert store.find("export", "sums01") is None
    capsys.readouterr()
    assert main(["store", "pin", "export/sums01"]) == 1
    assert "export/sums01 was pruned on 20" in capsys.readouterr().err
    assert main(["store", "unpin", "policy/sums01"]) == 0
    assert main(gc) == 0
    assert store.find("policy", "sums01") is None
    assert main(["store", "unpin", "policy/sums02"]) == 2
    assert "is not pinned in" in capsys.readouterr().err


def test_verify_names_what_is_damaged(store: ArtifactStore, capsys: Printed) -> None:
    assert main(["store", "verify"]) == 0
    assert capsys.readouterr().err.endswith(" 0 damaged\n")
    weights = Path(store.root, "policy", "sums01", "weights")
    weights.unlink()  # other artifacts are links to the same file
    weights.write_text("WEIGHTS of sums01")
    assert main(["store", "verify", "--format", "json"]) == 1
    (row,) = rows(capsys.readouterr().out)
    assert (row["kind"], row["key"]) == ("policy", "sums01")
    assert "weights was changed after it was written" in row["fault"]


def test_without_a_root_it_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    put(ArtifactStore("runs/store"), "policy", "p")
    assert main(["store", "gc", "--yes"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has no root: no champion, no pin, and no run" in line
    assert main(["store", "usage"]) == 0
    assert "no root, so gc would refuse" in capsys.readouterr().err


def test_a_run_whose_page_and_rollouts_are_gone_is_answered_by_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_server: str, capsys: Printed
) -> None:
    """Prefect forgets runs after 90 days; a server that is up has no row of this one."""
    del prefect_server
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "HOME", HOME)
    made = MadeRun(tmp_path / "runs")
    dataset = made.prepare()
    made.train(dataset, iterations=2)
    made.evaluate()
    made.complete()
    policy = made.store.find("policy", made.key)
    assert policy is not None
    assert main(["store", "gc", "--drop-rollouts", "--yes", *NOW]) == 0
    capsys.readouterr()
    assert main(["runs"]) == 0
    assert "completed" in capsys.readouterr().out
    assert main(["report", made.name, "--out", "report.html"]) == 0
    page = Path("report.html").read_text()
    assert "The rollouts of 2 iterations were pruned on 20" in page
    assert "(--drop-rollouts)" in page
    assert "sampled nothing yet" not in page
    capsys.readouterr()
    assert main(["lineage", made.name]) == 0
    assert "evaluation" in capsys.readouterr().out
    with pytest.raises(UserError, match="no rollouts of iteration 1; they were pruned on 20"):
        made.open().rollouts(1)
    with pytest.raises(UserError, match="has no rollouts any more; they were pruned on 20"):
        made.open().trajectories()


def test_a_replay_of_what_was_dropped_ends_in_a_sentence(store: ArtifactStore) -> None:
    """Before an engine is started for it."""
    recorded = RecordedIterations(store, "sums02", "sums-00000002")
    recorded.check_kept(1, 2)
    assert main(["store", "gc", "--drop-rollouts", "--yes", *NOW]) == 0
    with pytest.raises(PrunedArtifact, match=r"rollouts/sums02/000001 was pruned on 20.*dropped"):
        recorded.check_kept(1, 2)
