"""Retraining as a user has it: nothing new trains nothing, better is promoted, worse and equal are
held, and a kill between two steps changes nothing."""

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client

from flows.cli import main
from rlcore.retraining.champions import Champion, add_champion, champions, decisions
from rlcore.store.artifacts import ArtifactStore
from tasks.runtime.alerts import FAILED
from tests.flows.retrained import NAME, STEPS, run_retrain, write_recipe, write_rows
from tests.rlcore.retraining.rivals import plant, right_answers

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


def entries(folder: Path) -> list[Champion]:
    return champions(ArtifactStore(folder / "runs" / "store"), NAME)


def exports(folder: Path) -> list[str]:
    return [entry.export_sha256 for entry in entries(folder)]


@pytest.fixture(scope="module")
def said(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each retraining said, of a recipe whose files come one after the other; by what came.

    The folder is under "folder".
    """
    del prefect_server
    folder = tmp_path_factory.mktemp("retrained")
    recipe = write_recipe(folder)
    rows = folder / "rows"
    found: dict[str, Any] = {"folder": folder}

    def retrain(what: str, overrides: dict[str, Any] | None = None) -> None:
        found[what] = run_retrain(recipe, overrides)[1]

    write_rows(rows / "1.jsonl", "no", 64, 0)
    retrain("first")
    retrain("nothing")
    write_rows(rows / "2.jsonl", "yes", 400, 1000)
    retrain("better")
    write_rows(rows / "3.jsonl", "no", 1600, 2000)
    retrain("worse")
    retrain("worse again")
    (rows / "3.jsonl").unlink()
    write_rows(rows / "4.jsonl", "yes", 64, 4000)
    retrain("too few", {"retrain.min_new_rows": 65})
    retrain("equal")
    return found


def test_nothing_new_trains_nothing_and_starts_no_ray(said: Any) -> None:
    assert said["first"]["result"]["verdict"] == "first"
    nothing = said["nothing"]
    assert nothing["state"] == "Nothing new"
    assert nothing["message"] == "champion 1 of 'says' has learnt from all that there is"
    assert not nothing["ray"]
    assert said["too few"]["state"] == "Nothing new"
    assert (
        "4.jsonl with 64 rows, fewer than retrain.min_new_rows = 65" in said["too few"]["message"]
    )


def test_better_is_promoted_and_worse_and_equal_are_held(said: Any) -> None:
    results = {kind: said[kind]["result"] for kind in ("better", "worse", "equal")}
    verdicts = {kind: (result["verdict"], result["champion"]) for kind, result in results.items()}
    assert verdicts == {
        "better": ("promoted", 2),
        "worse": ("worse", None),
        "equal": ("uncertain", None),
    }
    assert [entry.cause for entry in entries(said["folder"])] == ["first", "promoted"]
    made = decisions(ArtifactStore(said["folder"] / "runs" / "store"), NAME)
    assert made["look"].to_list() == [1, 1, 2, 3]


def test_what_was_held_is_not_tried_again(said: Any) -> None:
    assert said["worse again"]["state"] == "Nothing new"
    assert (
        "has not seen 3.jsonl with 1600 rows; this was tried on" in said["worse again"]["message"]
    )
    assert said["worse again"]["message"].endswith("and held as worse")


def test_the_champion_is_judged_again_on_other_rows_and_a_run_begins_with_it(
    said: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "copied"
    shutil.copytree(said["folder"], folder, symlinks=True)
    recipe = folder / f"{NAME}.yaml"
    write_rows(folder / "test.jsonl", "yes", 90, 9500)
    write_rows(folder / "rows" / "5.jsonl", "yes", 64, 5000)
    first = run_retrain(recipe)[1]["result"]
    assert "over 90 prompts, look 1 at them" in first["sentence"], "other rows, other looks"
    write_rows(folder / "rows" / "6.jsonl", "yes", 64, 6000)
    second = run_retrain(recipe, {"retrain.start": "champion"})[1]["result"]
    assert "over 90 prompts, look 2 at them" in second["sentence"]
    text = (folder / "runs" / second["run"] / "recipe.yaml").read_text()
    assert f"export/{entries(folder)[-1].export_key}/" in text
    assert "from_scratch: null" in text


def test_a_test_set_that_is_too_small_is_refused_before_anything_is_trained(
    prefect_server: str, tmp_path: Path
) -> None:
    del prefect_server
    recipe = write_recipe(tmp_path)
    write_rows(tmp_path / "rows" / "1.jsonl", "no", 64, 0)
    write_rows(tmp_path / "test.jsonl", "yes", 20, 9000)
    failed = run_retrain(recipe)[1]
    assert failed["state"] == "Failed"
    assert "has 20 test prompts, and the gate can decide nothing with fewer" in failed["message"]
    failed = run_retrain(recipe, {"retrain.guards": ["safety"]})[1]
    assert "retrain.guards names the set 'safety', which the test rows" in failed["message"]
    assert not (tmp_path / "runs" / "store" / "policy").exists()
    told = {"resource": {"id": [f"rl-pipeline.champion.{NAME}"]}, "event": {"name": [FAILED]}}
    deadline = time.monotonic() + 300
    with get_client(sync_client=True) as client:
        while True:
            found = client.request("POST", "/events/filter", json={"filter": told}).json()["events"]
            texts = "\n".join(event["payload"]["text"] for event in found)
            if "has 20 test prompts" in texts and "the set 'safety'" in texts:
                break
            assert time.monotonic() < deadline, texts
            time.sleep(1)


def test_a_champion_whose_export_is_gone_is_named_before_anything_is_trained(
    prefect_server: str, tmp_path: Path
) -> None:
    """The gate found out after a night's training."""
    del prefect_server
    recipe = write_recipe(tmp_path)
    write_rows(tmp_path / "rows" / "1.jsonl", "no", 64, 0)
    store = ArtifactStore(tmp_path / "runs" / "store")
    export, _ = plant(store, "gone", right_answers(0.5))
    add_champion(store, NAME, after=0, export=export, cause="by hand")
    store.discard("export", "gone")
    failed = run_retrain(recipe)[1]
    assert failed["state"] == "Failed"
    assert "champion 1 of 'says': its export export/gone cannot be used" in failed["message"]
    assert "none is whole (rl-pipeline champions says), or run the recipe" in failed["message"]
    assert not (tmp_path / "runs" / "store" / "policy").exists()


def test_a_push_that_fails_undoes_nothing(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del prefect_server
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    recipe = write_recipe(tmp_path, push="owner/says")
    write_rows(tmp_path / "rows" / "1.jsonl", "no", 64, 0)
    assert run_retrain(recipe)[1]["result"]["champion"] == 1
    assert len(entries(tmp_path)) == 1


def test_killed_between_two_steps_a_rerun_ends_with_the_same_champion(
    said: Any, tmp_path: Path
) -> None:
    """Each step's process is killed behind it, the next one is started where it was left."""
    folder = tmp_path / "killed"
    recipe = write_recipe(folder)
    shutil.copytree(said["folder"] / "runs" / "store", folder / "runs" / "store")
    for kind in ("champions", "decisions"):
        for number in entries(folder)[1:] if kind == "champions" else ():
            shutil.rmtree(folder / "runs" / "store" / kind / NAME / str(number.number))
    shutil.rmtree(folder / "runs" / "store" / "decisions")
    write_rows(folder / "rows" / "1.jsonl", "no", 64, 0)
    write_rows(folder / "rows" / "2.jsonl", "yes", 400, 1000)
    assert len(entries(folder)) == 1
    for step in STEPS:
        assert run_retrain(recipe, kill_after=f"after {step}")[0] == -signal.SIGKILL, step
    last = run_retrain(recipe)[1]
    assert last["state"] == "Nothing new", last
    assert exports(folder) == exports(said["folder"])
    made = decisions(ArtifactStore(folder / "runs" / "store"), NAME)
    assert made["look"].to_list() == [1], "a killed process's look was counted again"


def test_a_rollback_stays_until_there_is_something_new(said: Any) -> None:
    """The last of the file: it changes the folder of the others."""
    folder = said["folder"]
    (folder / "rows" / "4.jsonl").unlink()
    store = str(folder / "runs" / "store")
    assert main(["champions", NAME, "rollback", "1", "--store", store]) == 0
    first, _, back = exports(folder)
    assert back == first
    again = run_retrain(folder / f"{NAME}.yaml")[1]
    assert again["state"] == "Nothing new"
    assert again["message"].endswith("this made champion 2, which 3 has replaced since")
