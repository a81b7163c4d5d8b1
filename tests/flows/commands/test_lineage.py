"""``rl-pipeline lineage`` names on stderr what it cannot prove, and prints the chain whole."""

import json
from pathlib import Path

import pytest

from flows.cli import main
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.results.test_lineage import chain, put, read_by


def test_a_changed_file_is_named_and_fails_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store = ArtifactStore(tmp_path / "runs" / "store")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("one")
    put(store, "export", "k", d=read_by(store, "d", rows))
    assert main(["lineage", "export/k", "--check-inputs"]) == 0
    assert "unchanged" in capsys.readouterr().out
    rows.write_text("two")
    assert main(["lineage", "export/k"]) == 0
    said = capsys.readouterr()
    assert "  changed  " in said.out
    assert f"{rows}: changed since it was read, when its sha256 was 7692c3ad3540" in said.err
    assert main(["lineage", "export/k", "--check-inputs"]) == 1
    capsys.readouterr()
    assert main(["lineage", "7692c3ad3540", "--forward"]) == 0
    assert " export " in capsys.readouterr().out


def test_manifests_without_a_seal_are_counted_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What they claim would look as proven as the rest."""
    monkeypatch.chdir(tmp_path)
    manifests, _ = chain(ArtifactStore(tmp_path / "runs" / "store"))
    asked = ["lineage", "export/k", "--format", "json"]
    assert main(asked) == 0
    sealed = capsys.readouterr()
    assert sealed.err == ""
    for path in manifests[1:3]:
        fields = json.loads(path.read_text()) | {"version": "manifest/v1"}
        del fields["seal"]
        path.write_text(json.dumps(fields))
    assert main(asked) == 0
    unsealed = capsys.readouterr()
    assert len(json.loads(unsealed.out)["artifacts"]) == 4
    assert json.loads(unsealed.out) == json.loads(sealed.out)
    (line,) = unsealed.err.splitlines()
    assert line.startswith("2 of 4 manifests have no seal, the first that of policy/k: ")
    assert line.endswith("what they say of parents and producers is not proven")
