"""Who sees the champions can go back to one, and that is a new entry with the old model."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flows import local
from flows.cli import main
from flows.paths import ROOT
from rlcore.retraining.champions import champions
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.retraining.rivals import NAME, gate, plant, promote, right_answers

pytestmark = pytest.mark.timeout(60)
SCHEMA = ROOT / "docs" / "schemas" / "champions.schema.json"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    """With the champions 1 and 2 of ``NAME``, and no server that is up."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(local, "HOME", tmp_path / "home")
    store = ArtifactStore(tmp_path / "store")
    for key, share in (("one", 0.5), ("two", 0.8)):
        promote(store, *gate(store, key, right_answers(share)))
    return store


def rows(store: ArtifactStore, capsys: pytest.CaptureFixture[str], *action: str) -> Any:
    assert main(["champions", NAME, *action, "--store", store.root, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(store: ArtifactStore, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["champions", *words, "--store", store.root]) == 2
    return capsys.readouterr().err.strip()


def test_json_csv_and_table_show_each_entry_with_its_gain(
    store: ArtifactStore, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows(store, capsys)
    jsonschema.validate(found, json.loads(SCHEMA.read_text()))
    assert [(row["number"], row["cause"], row["gain"]) for row in found] == [
        (1, "first", None),
        (2, "promoted", pytest.approx(0.3)),
    ]
    assert main(["champions", NAME, "--store", store.root, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == ",".join(found[0])
    assert main(["champions", NAME, "--store", store.root]) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[-1] == f"Champion 2: {store.root}/export/two"


def test_rollback_restores_the_digest_and_promote_takes_any_export(
    store: ArtifactStore, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, back = rows(store, capsys, "rollback", "1")
    assert (back["number"], back["cause"], back["restored"]) == (3, "rolled back", 1)
    assert back["export_sha256"] == first["export_sha256"] != second["export_sha256"]
    plant(store, "by-hand", right_answers(0.1))
    last = rows(store, capsys, "promote", "export/by-hand")[-1]
    assert (last["number"], last["cause"], last["export_key"]) == (4, "by hand", "by-hand")
    assert champions(store, NAME)[-1].export_key == "by-hand"


def test_what_cannot_be_gone_to_is_refused_in_a_sentence(
    store: ArtifactStore, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {
        ("tinny",): r"'tinny' has no champion in .*did you mean 'tiny'",
        ("../export",): r"'../export' is no name of a recipe: small letters",
        ("tiny/1", "promote", "export/one"): r"'tiny/1' is no name of a recipe: .*mean 'tiny'",
        (NAME, "rollback", "9"): r"'9' names no entry .* there are 1 \(",
        (NAME, "rollback", "2"): r"rollback 2: that model is the champion; name an earlier",
        (NAME, "rollback"): r"champions tiny rollback: name the REF",
        (
            NAME,
            "promote",
            "evaluation/two-evaluation",
        ): r"no export but .*; name a run that has ended",
        (NAME, "promote", "export/thre"): r"there is no run .* did you mean",
    }
    for words, sentence in said.items():
        error = refusal(store, capsys, *words)
        assert re.search(sentence, error), error
        assert "\n" not in error
    (Path(store.root) / "export" / "one" / "manifest.json").unlink()
    assert "its export export/one cannot be used" in refusal(store, capsys, NAME, "rollback", "1")
    assert [entry.number for entry in champions(store, NAME)] == [1, 2], "nothing was changed"
