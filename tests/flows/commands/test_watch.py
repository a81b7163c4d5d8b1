"""`rl-pipeline watch` needs a server that knows the run, and says so where there is none."""

from pathlib import Path

import pytest

from flows import local
from flows.cli import main


def test_without_a_server_it_ends_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Starting one here would show an empty history instead of the run that is looked for."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(local, "HOME", tmp_path / "home")
    assert main(["watch"]) == 2
    said = capsys.readouterr().err.strip()
    assert said == "error: no Prefect server of this project is running; `make up` starts it"
    assert not (tmp_path / "home").exists()
