"""What is read from outside the store, by content, with the place and the commit."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from rlcore.store.inputs import files_read, hub_read, read_directory_digest, read_file_digest


def test_a_moved_file_is_the_same_in_keys_and_another_in_lineage(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text("{}\n")
    first, second = (read_file_digest(str(tmp_path / n / "rows.jsonl"), "data") for n in "ab")
    assert first == second
    assert first.files() != second.files()
    (found,) = read_directory_digest(tmp_path / "a", "model.path").files()
    assert found == first.files()[0]
    assert f"sha256:{found.digest}" == first


@pytest.mark.parametrize(
    ("revision", "kept", "commit"),
    [(None, "main", "1" * 40), ("v2", "main", "v2"), ("2" * 40, "main", "2" * 40)],
)
def test_a_hub_name_becomes_the_commit_in_the_cache(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    revision: str | None,
    kept: str,
    commit: str,
) -> None:
    """An unpinned dataset says nothing of which rows were read."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    read = hub_read("openai/gsm8k", revision, "dataset")
    assert read == f"hub:openai/gsm8k@{revision or 'unpinned'}"
    if revision is None:
        assert read.files()[0].digest == "unpinned"
    refs = tmp_path / "datasets--openai--gsm8k" / "refs"
    refs.mkdir(parents=True)
    (refs / kept).write_text("1" * 40)
    assert files_read({"data": read}) == [("data", "hf://datasets/openai/gsm8k", commit)]
