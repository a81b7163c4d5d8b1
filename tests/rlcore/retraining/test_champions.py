"""A recipe has one champion at a time, whoever promotes at once and wherever one is killed."""

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rlcore.results.lineage import trace
from rlcore.results.queries import answer
from rlcore.retraining.champions import (
    ROLLED_BACK,
    Champion,
    ChampionMoved,
    add_champion,
    champion,
    champion_names,
    champions,
    decisions,
    entry_of,
    verified_export,
)
from rlcore.store.artifacts import ArtifactStore
from schemas.errors import UserError
from tests.rlcore.retraining.rivals import NAME, gate, plant, promote, right_answers

pytestmark = pytest.mark.timeout(120)
STEPS = [f"{when} {kind}" for kind in ("decisions", "champions") for when in ("before", "after")]


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    """With the champions 1 and 2."""
    store = ArtifactStore(tmp_path / "store")
    for key, share in (("one", 0.5), ("two", 0.8)):
        promote(store, *gate(store, key, right_answers(share)))
    return store


def test_the_history_says_which_model_and_why(store: ArtifactStore) -> None:
    assert [(e.number, e.cause, e.export_key) for e in champions(store, NAME)] == [
        (1, "first", "one"),
        (2, "promoted", "two"),
    ]
    assert champion_names(store) == [NAME]
    assert champion(store, NAME) == champions(store, NAME)[-1]
    found = answer(
        store,
        "select number, export_key, look from champions c join decisions d on"
        " c.decision_key = split_part(d.key, '/', 2) order by number",
    )
    assert found.rows == [(1, "one", 1), (2, "two", 1)]
    entry = store.find("champions", f"{NAME}/2")
    assert entry is not None
    made_from = {node.name for node in trace(store, [entry]).nodes}
    assert {
        "export/two",
        "export/one",
        "evaluation/two-evaluation",
        "champions/tiny/1",
    } <= made_from


def test_the_same_promotion_asked_again_is_one_entry(store: ArtifactStore) -> None:
    outcome, reigning = gate(store, "three", right_answers(1.0))
    entry = promote(store, outcome, reigning)
    assert promote(store, outcome, reigning) == entry
    assert champion(store, NAME) == entry
    assert entry.number == 3


def test_of_two_promotions_at_once_one_wins(store: ArtifactStore) -> None:
    """Each has its own view of the store, as two processes have."""
    results: list[Champion | Exception] = []

    def rival(key: str) -> None:
        mine = ArtifactStore(store.root, writer=key)
        export, _ = plant(mine, key, right_answers(0.9))
        begin.wait()
        try:
            results.append(add_champion(mine, NAME, after=2, export=export, cause="by hand"))
        except UserError as error:
            results.append(error)

    begin = threading.Barrier(2)
    threads = [threading.Thread(target=rival, args=(key,)) for key in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (lost,) = [each for each in results if isinstance(each, Exception)]
    assert isinstance(lost, ChampionMoved)
    assert "'tiny' has champion 3 since" in str(lost)
    assert [e.number for e in champions(store, NAME)] == [1, 2, 3]


def test_a_rollback_is_a_new_entry_with_the_old_digest(store: ArtifactStore) -> None:
    old = entry_of(store, NAME, "1")
    export = verified_export(store, old)
    entry = add_champion(store, NAME, after=2, export=export, cause=ROLLED_BACK, restored=1)
    assert (entry.number, entry.export_sha256) == (3, old.export_sha256)
    assert entry_of(store, NAME, old.export_sha256[:10]) == entry
    assert store.find("export", entry.export_key) == export


def test_a_champion_whose_export_is_gone_is_named_with_those_that_are_there(
    store: ArtifactStore,
) -> None:
    shutil.rmtree(Path(store.root) / "export" / "two")
    with pytest.raises(
        UserError,
        match=r"champion 2 of 'tiny': its export export/two cannot be"
        r" used, it is not there; roll back to one of 1 ",
    ) as refusal:
        verified_export(store, entry_of(store, NAME, "2"))
    assert "\n" not in str(refusal.value)
    damaged = Path(store.root) / "export" / "one" / "metrics.parquet"
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match=r"champion 1 .* none is whole"):
        verified_export(store, entry_of(store, NAME, "1"))


def test_a_champion_whose_export_was_collected_says_when_and_why(store: ArtifactStore) -> None:
    """What `store gc --keep-champions 1` took is not searched for among damaged files."""
    one = entry_of(store, NAME, "1")
    store.prune("one", {"export/one": (one.export_sha256, "no root needs it")})
    with pytest.raises(
        UserError,
        match=r"^champion 1 .* cannot be used, it was pruned on 20.*: no root needs it; roll"
        r" back to one of 2 .*, or run the recipe that made it again$",
    ):
        verified_export(store, one)


def test_a_name_or_entry_that_there_is_not(store: ArtifactStore) -> None:
    with pytest.raises(UserError, match=r"'tinny' has no champion in .*did you mean 'tiny'"):
        entry_of(store, "tinny", "1")
    with pytest.raises(UserError, match=r"'7' names no entry .* there are 1 \("):
        entry_of(store, NAME, "7")


@pytest.mark.slow
def test_on_s3_of_two_promotions_one_wins(bucket: str, tmp_path: Path) -> None:
    store = ArtifactStore(bucket, tmp_path / "cache")
    promote(store, *gate(store, "one", right_answers(0.5)))
    other = ArtifactStore(bucket, tmp_path / "another-cache", writer="another")
    export, _ = plant(other, "two", right_answers(0.8))
    assert add_champion(other, NAME, after=1, export=export, cause="by hand").number == 2
    with pytest.raises(ChampionMoved, match="has champion 2 since, and this was to follow 1"):
        add_champion(store, NAME, after=1, export=export, cause="by hand")


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_killed_between_two_steps_a_rerun_ends_with_the_same_champion(
    step: str, tmp_path: Path
) -> None:
    store = ArtifactStore(tmp_path / "store")
    promote(store, *gate(store, "one", right_answers(0.5)))

    def run(*step: str) -> int:
        command = [sys.executable, "-m", "tests.rlcore.retraining.rivals", store.root, "two", *step]
        return subprocess.run(command, check=False, capture_output=True, timeout=300).returncode

    assert run(step) == -9
    assert [e.number for e in champions(store, NAME)] in ([1], [1, 2]), "whole or absent"
    assert run() == 0
    assert [(e.number, e.export_key) for e in champions(store, NAME)] == [(1, "one"), (2, "two")]
    made = decisions(store, NAME).filter(verdict="promoted")
    assert made["look"].to_list() == [1], "a look of the killed process was counted twice"
