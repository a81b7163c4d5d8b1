"""What a run reads from outside the store counts in its keys by content alone."""

from pathlib import Path

import pytest

from rlcore.data.sources import data_digests, model_digests
from rlcore.store.inputs import Read
from schemas.data import (
    AimeSource,
    ArithmeticSource,
    DataSection,
    FileSource,
    Gsm8kSource,
    MathSource,
)
from schemas.errors import UserError
from schemas.model import FromScratch, ModelSection
from tests.rlcore.data.row_files import MATH_ROWS, VERL_ROWS, write


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


def test_files_of_math_and_aime_count_by_their_content(tmp_path: Path) -> None:
    def digests() -> dict[str, Read]:
        math = MathSource(path=str(tmp_path / "math"))
        return data_digests(DataSection(sources=(math, AimeSource(path=str(tmp_path / "a.jsonl")))))

    (tmp_path / "math").mkdir()
    for name in ("math/train.jsonl", "math/test.jsonl", "a.jsonl"):
        write(tmp_path / name, MATH_ROWS)
    first = digests()
    roles = ["data.sources[0] train.jsonl", "data.sources[0] test.jsonl", "data.sources[1] a.jsonl"]
    assert list(first) == roles
    write(tmp_path / "math" / "test.jsonl", MATH_ROWS[:3])
    assert [first[role] == digests()[role] for role in roles] == [True, False, True]


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
    math = MathSource(revision="c0ffee")
    assert data_digests(DataSection(sources=(math, AimeSource()))) == {
        "data.sources[0]": "hub:DigitalLearningGmbH/MATH-lighteval@c0ffee",
        "data.sources[1]": "hub:Maxwell-Jia/AIME_2024@unpinned",
    }
    pinned = model_digests(ModelSection(path="a/b", revision="c0ffee"))
    assert pinned == {"model": "hub:a/b@c0ffee"}
