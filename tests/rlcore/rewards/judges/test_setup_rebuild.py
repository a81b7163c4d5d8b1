"""A cache that is lost or damaged is made again from the verdicts in the store."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlcore.rewards.judge import JudgeFunction
from rlcore.rewards.judges.setup import cache_folder, prepare_cache
from rlcore.rl.reward import rewards_frame
from rlcore.store.artifacts import ArtifactStore, Lineage
from tests.rlcore.rewards.judges.asking import JudgeSetup, calls_made, judge, rows, setup
from tests.rlcore.rewards.judges.server import JudgeServer, judge_server, says

LINEAGE = Lineage("recipe", "code")


def score(asked: JudgeSetup, *texts: str) -> list[float | None]:
    scorer = JudgeFunction("j0", asked)
    try:
        found = scorer.score(rows(*texts), 1.0)
        keep(asked, f"scored-{'-'.join(texts)}", found)
        return [reward.score for reward in found]
    finally:
        scorer.close()


def keep(asked: JudgeSetup, key: str, found: list) -> None:
    ArtifactStore(asked.folder.parent).put(
        "rewards", key, tables={"rewards": rewards_frame(found)}, lineage=LINEAGE
    )


def asking(store: Path, server: JudgeServer) -> JudgeSetup:
    return setup(cache_folder(str(store)), judge(server.url))


@pytest.mark.parametrize("fault", ["gone", "cut", "overwritten"])
def test_no_answer_in_the_store_is_asked_for_again(tmp_path: Path, fault: str) -> None:
    store, said = tmp_path / "store", []
    with judge_server(says("right")) as server:
        asked = asking(store, server)
        assert score(asked, "a", "b", "a") == [1.0] * 3
        if fault == "gone":
            asked.cache.unlink()
        else:
            size = asked.cache.stat().st_size
            kept = asked.cache.read_bytes()[: size // 2 if fault == "cut" else 0]
            asked.cache.write_bytes(kept or b"?" * size)
        prepare_cache(asked, str(store), said.append)
        assert score(asked, "b", "a") == [1.0, 1.0]
        assert len(server.requests) == 2
        assert [line.partition(";")[0] for line in said[:-1]] == (
            [] if fault == "gone" else [f"{asked.cache} is damaged"]
        )
        assert said[-1].startswith("2 answers of judges were read from the store into")
        assert calls_made(asked.cache, "j0") == 2  # and the ceiling continues from there


def test_a_cache_that_is_whole_is_left_alone(tmp_path: Path) -> None:
    with judge_server(says("right")) as server:
        asked = asking(tmp_path / "store", server)
        score(asked, "a")
        before = asked.cache.stat().st_ino
        prepare_cache(asked, str(tmp_path / "store"), lambda line: pytest.fail(line))
        assert asked.cache.stat().st_ino == before


def test_a_new_store_has_an_empty_cache(tmp_path: Path) -> None:
    asked = setup(cache_folder(str(tmp_path)), judge())
    prepare_cache(asked, str(tmp_path), lambda line: pytest.fail(line))
    assert asked.cache.is_file()
    assert ArtifactStore(tmp_path).manifests() == []


def test_a_damaged_artifact_costs_its_answers_only(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with judge_server(says("right")) as server:
        asked = asking(store, server)
        score(asked, "a")
        score(asked, "b")
        (store / "rewards" / "scored-a" / "rewards.parquet").write_bytes(b"x")
        asked.cache.unlink()
        prepare_cache(asked, str(store), lambda line: None)
        score(asked, "a", "b")
        assert len(server.requests) == 3


def test_two_runs_that_start_together_make_one_cache(tmp_path: Path) -> None:
    """The lock is the file's that each of them opens, so threads stand for processes here."""
    store = tmp_path / "store"
    with judge_server(says("right")) as server:
        asked = asking(store, server)
        score(asked, "a", "b")
        said: list[str] = []
        for time in range(1, 6):
            asked.cache.unlink()
            with ThreadPoolExecutor(4) as runs:
                list(runs.map(prepare_cache, [asked] * 4, [str(store)] * 4, [said.append] * 4))
            assert len(said) == time, "one of the four made it"
            assert [path.name for path in asked.folder.glob("*.sqlite")] == ["answers.sqlite"]
        score(asked, "a", "b")
        assert len(server.requests) == 2
