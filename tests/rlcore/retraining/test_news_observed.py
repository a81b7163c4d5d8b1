"""What is looked at before a retraining is what the training would read."""

from pathlib import Path

import pytest
from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

from rlcore.retraining import news
from rlcore.retraining.news import new_rows, observe
from schemas.data import (
    AimeSource,
    ArithmeticSource,
    DataSection,
    FileSource,
    Gsm8kSource,
    HubSource,
)
from schemas.errors import UserError
from tests.rlcore.data.row_files import VERL_ROWS, write

COMMIT = "0123456789" * 4


def test_files_count_by_content_and_test_rows_do_not(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", VERL_ROWS[:5])
    rows = FileSource(path=str(tmp_path / "rows-*.jsonl"))
    test = FileSource(path=str(tmp_path / "test.jsonl"), split="test")
    data = DataSection(sources=(ArithmeticSource(), rows, test), deduplicate="off")
    write(tmp_path / "rows-1.jsonl", VERL_ROWS[:3])
    first = observe(data)
    assert [one.url for one in first.inputs] == [str(tmp_path / "rows-1.jsonl")]
    write(tmp_path / "test.jsonl", VERL_ROWS[:6])
    assert observe(data) == first, "new test rows are nothing to learn from"
    write(tmp_path / "rows-0.jsonl", VERL_ROWS[3:5])
    second = observe(data)
    assert second.digest != first.digest
    fresh = [one for one in second.inputs if one.digest != first.inputs[0].digest]
    assert new_rows(data, fresh) == 2
    limited = data.model_copy(
        update={"sources": (ArithmeticSource(), rows.model_copy(update={"limit": 1}))}
    )
    assert new_rows(limited, second.inputs) == 2


def test_hub_names_are_held_at_the_commit_that_the_hub_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned = HubSource(name="owner/pinned", revision="f" * 40)
    data = DataSection(sources=(HubSource(name="owner/open"), pinned, AimeSource(split="train")))
    asked: list[str] = []

    def newest(name: str) -> str:
        asked.append(name)
        return COMMIT

    monkeypatch.setattr(news, "hub_unreachable", lambda: "")
    monkeypatch.setattr(news, "_newest_commit", newest)
    found = observe(data)
    assert asked == ["owner/open", "Maxwell-Jia/AIME_2024"]
    assert found.pins == {"data.sources.0.revision": COMMIT, "data.sources.2.revision": COMMIT}
    assert [(one.url, one.digest) for one in found.inputs] == [
        ("hf://datasets/owner/open", COMMIT),
        ("hf://datasets/owner/pinned", "f" * 40),
        ("hf://datasets/Maxwell-Jia/AIME_2024", COMMIT),
    ]
    assert new_rows(data, found.inputs) is None
    monkeypatch.setattr(news, "_newest_commit", lambda name: "e" * 40)
    moved = observe(data)
    assert moved.digest != found.digest


def test_what_cannot_be_looked_at_is_said_and_counts_as_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    monkeypatch.delenv("GSM8K_DIR", raising=False)
    found = observe(DataSection(sources=(HubSource(name="owner/open"), Gsm8kSource())))
    assert found.pins == {}
    assert found.notes == (
        "hub dataset 'owner/open' counts as unchanged: HF_HUB_OFFLINE is set",
        "hub dataset 'openai/gsm8k' counts as unchanged: a source of kind gsm8k cannot be pinned",
    )


def test_a_connection_that_drops_ends_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop(*_: object) -> None:
        raise HTTPError("Server disconnected without sending a response.")

    monkeypatch.setattr(news, "hub_unreachable", lambda: "")
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", drop)
    with pytest.raises(UserError, match=r"dataset 'owner/open' is: Server disconnected"):
        observe(DataSection(sources=(HubSource(name="owner/open"),)))


def test_a_pattern_without_files_is_refused(tmp_path: Path) -> None:
    data = DataSection(sources=(FileSource(path=str(tmp_path / "*.jsonl")),))
    with pytest.raises(UserError, match=r"data\.sources\[0\]\.path = .* matches no file"):
        observe(data)
