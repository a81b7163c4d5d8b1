"""``rl-pipeline env`` is pasted into reports, so it tells no secret."""

import json

import pytest

from flows.cli import main


def test_versions_and_settings_but_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "planted")
    monkeypatch.setenv("GSM8K_DIR", "/data/gsm8k")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert main(["env", "--format", "json"]) == 0
    printed = capsys.readouterr().out
    facts = {row["name"]: row["value"] for row in json.loads(printed)}
    assert facts["torch"][0].isdigit()
    assert facts["GSM8K_DIR"] == "/data/gsm8k"
    assert facts["WANDB_API_KEY"] == "set"
    assert facts["HF_TOKEN"] == "not set"
    assert "planted" not in printed
