"""Rows of a run's stages: whoever reads finds one at any moment, and a kill loses none."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rlcore.results.queries import answer
from rlcore.results.run import record_stage, stage_rows
from rlcore.results.stage_rows import following, newest
from rlcore.store.artifacts import ArtifactStore, Lineage
from tests.rlcore.results.records import stage_record

MADE = Lineage("recipe", "code")
ROW = stage_record("quickstart-0123abcd", "rl", kind="policy", key="p")


def test_the_newest_row_counts_by_number_and_not_by_letters() -> None:
    keys: list[str] = []
    for _ in range(11):
        keys.append(following(keys, "run/rl"))
    keys += ["run/sft", "other/rl"]
    assert keys[9:11] == ["run/rl.10", "run/rl.11"]
    assert newest(keys) == ["other/rl", "run/rl.11", "run/sft"]


def test_a_reader_finds_a_row_while_others_are_written(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    record_stage(store, ROW, MADE)

    def read() -> Iterator[float | None]:
        while not written.done():
            rows = stage_rows(store)
            assert rows is not None
            assert rows.height == 1
            yield rows["seconds"][0]

    def write() -> None:
        for number in range(60):
            record_stage(store, replace(ROW, seconds=float(number)), MADE)

    with ThreadPoolExecutor() as pool:
        written = pool.submit(write)
        seen = [value for value in read() if value is not None]
    written.result()
    assert seen == sorted(seen), "an older row was read after a newer one"


def test_a_kill_while_a_row_is_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is drawn after it, and a rerun, still know what the stage came to."""
    store = ArtifactStore(tmp_path)
    record_stage(store, ROW, MADE)

    def killed(*args: object, **kwargs: object) -> None:
        del args, kwargs
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store, "put", killed)
        with pytest.raises(KeyboardInterrupt):
            record_stage(store, replace(ROW, seconds=2.0), MADE)
    rows = stage_rows(store)
    assert rows is not None
    assert rows["records_key"].to_list() == ["p"]


def test_sql_has_one_row_per_stage(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    for seconds in (None, 1.0, 2.0):
        record_stage(store, replace(ROW, seconds=seconds), MADE)
    found = answer(store, "SELECT stage, seconds FROM run_stages").rows
    assert list(found) == [("rl", 2.0)]
