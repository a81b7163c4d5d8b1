"""What a run reads from outside the store counts in its keys by content alone."""

from pathlib import Path

import pytest

from rlcore.data.inputs import data_digests, model_digests
from schemas.data import ArithmeticSource, DataSection, FileSource, Gsm8kSource
from schemas.errors import UserError
from schemas.recipe import FromScratch, ModelSection
from tests.rlcore.data.row_files import VERL_ROWS, write


def test_digests_change_with_content_alone(tmp_path: Path) -> None:
    """A stale cache after an edited file, or a missed one after a move, costs a whole run."""

    def digests(folder: str, rows: list[dict], weights: bytes) -> list[str]:
        model = tmp_path / folder / "model"
        model.mkdir(parents=True, exist_ok=True)
        (model / "model.safetensors").write_bytes(weights)
        path = write(tmp_path / folder / "rows.jsonl", rows)
        data = DataSection(
            sources=(ArithmeticSource(), FileSource(path=str(path))), deduplicate="off"
        )
        found = {**data_digests(data), **model_digests(ModelSection(path=str(model)))}
        assert set(found) == {"data.sources[1]", "model"}
        return list(found.values())

    first = digests("a", VERL_ROWS[:2], b"w")
    assert digests("b", VERL_ROWS[:2], b"w") == first
    assert digests("a", VERL_ROWS[:3], b"w")[0] != first[0]
    assert digests("a", VERL_ROWS[:2], b"v")[1] != first[1]


def test_digests_of_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_digests(ModelSection(from_scratch=FromScratch())) == {}
    data = DataSection(sources=(FileSource(path=str(tmp_path / "none.jsonl")),))
    with pytest.raises(
        UserError, match=r"data\.sources\[0\]\.path = '.*none\.jsonl' does not exist"
    ):
        data_digests(data)
    monkeypatch.delenv("GSM8K_DIR", raising=False)
    hub = data_digests(DataSection(sources=(Gsm8kSource(),)))
    assert hub == {"data.sources[0]": "hub:openai/gsm8k@unpinned"}
    pinned = model_digests(ModelSection(path="a/b", revision="c0ffee"))
    assert pinned == {"model": "hub:a/b@c0ffee"}
