"""``rl-pipeline data``: a wrong template or mask is seen before hours of SFT."""

from pathlib import Path

import pytest

from flows.cli import main

FEW = {
    "rl.rollout.prompts": "16",
    "data.sources.0.train": 16,
    "data.sources.0.validation": 4,
    "data.sources.0.test": 4,
    "data.sources.0.test_steps": 4,
    "data.sources.0.demonstrations": 32,
}


def arguments(**more: str) -> list[str]:
    given = {**FEW, **{key.replace("__", "."): value for key, value in more.items()}}
    return [part for key, value in given.items() for part in ("-o", f"{key}={value}")]


def test_it_prints_examples_and_the_datasheet_and_leaves_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert main(["data", "quickstart", "-n", "2", *arguments(store=str(store))]) == 0
    printed = capsys.readouterr().out
    assert "demonstration 2:" in printed
    assert "prompt 2:" in printed
    assert "prompt 3:" not in printed
    assert "│<|end|>│" in printed
    assert ["train", "arithmetic", "train", "16"] in [line.split() for line in printed.splitlines()]
    assert not store.exists()


def test_what_the_stage_would_refuse_ends_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "quickstart", *arguments(data__max_prompt_tokens="3")]) == 2
    assert "raise data.max_prompt_tokens" in capsys.readouterr().err
    assert main(["data", "quickstart", "-n", "-1"]) == 2
