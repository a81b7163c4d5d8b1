"""A gate over two evaluations promotes the better one only, and counts how often it looked."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from rlcore.evaluation.promotion_rule import Verdict, alpha_of
from rlcore.evaluation.win_rate import NoEvidence
from rlcore.retraining.champions import (
    Champion,
    ChampionMoved,
    champion,
    champions,
    decisions,
    looks,
)
from rlcore.retraining.gate_records import Side, same_rows
from rlcore.store.artifacts import ArtifactStore
from schemas.errors import UserError
from tests.rlcore.retraining.rivals import NAME, SHARES, gate, plant, promote, right_answers

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    """With the champion 1, which answers half of the prompts rightly."""
    store = ArtifactStore(tmp_path / "store")
    promote(store, *gate(store, "one", right_answers(0.5)))
    return store


def test_better_is_promoted_and_worse_and_equal_are_held(store: ArtifactStore) -> None:
    first = decisions(store, NAME).row(0, named=True)
    assert (first["verdict"], first["look"], first["champion"]) == ("first", 1, 0)
    verdicts = {kind: gate(store, kind, right_answers(share))[0] for kind, share in SHARES.items()}
    assert verdicts["equal"].verdict is Verdict.UNCERTAIN
    assert verdicts["worse"].verdict is Verdict.WORSE
    assert verdicts["better"].verdict is Verdict.PROMOTED
    assert "promoted: gain on all +0.3000 [" in verdicts["better"].sentence
    row = decisions(store, NAME).filter(key=verdicts["better"].ref.key.rpartition("/")[2])
    assert row.select("candidate", "prompt_set", "prompts", "champion").rows() == [
        ("better", "all", 200, 1)
    ]


def test_a_look_is_counted_once_and_a_changed_test_set_starts_anew(store: ArtifactStore) -> None:
    digest = decisions(store, NAME)["prompts_digest"][0]
    assert looks(store, NAME, digest) == 0, "a first champion is compared with nothing"
    for number, kind in enumerate(("equal", "worse"), 1):
        for _ in range(2):  # asked twice, it is one decision
            gate(store, kind, right_answers(SHARES[kind]))
        assert looks(store, NAME, digest) == number
    third = gate(store, "better", right_answers(0.8))[0]
    assert (third.rows[0]["look"], third.rows[0]["alpha"]) == (3, alpha_of(3))
    promote(store, third, champion(store, NAME))
    changed = {**right_answers(0.8), "another": True}
    with pytest.raises(UserError, match=r"champion 2 of 'tiny' were evaluated on other test rows"):
        gate(store, "more-rows", changed)
    judged_again = plant(store, "better-on-more", changed)[1]
    anew = gate(store, "more-rows", changed, champion_evaluation=judged_again)[0]
    assert anew.rows[0]["look"] == 1


@pytest.mark.parametrize("where", ["folder", pytest.param("s3", marks=pytest.mark.slow)])
def test_of_two_gates_at_once_one_wins_and_the_other_is_asked_again(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Two that were both better than the old champion would follow it both, and the worse of them
    could be the last. Each has its own view of the store, as two processes have."""
    root = str(tmp_path / "raced") if where == "folder" else request.getfixturevalue("bucket")
    stores = [ArtifactStore(root, tmp_path / name, writer=name) for name in ("left", "right")]
    promote(stores[0], *gate(stores[0], "one", right_answers(0.5)))
    decided = threading.Barrier(2)

    def retrain(store: ArtifactStore, key: str) -> Champion | None:
        outcome, reigning = gate(store, key, right_answers(0.8))
        assert outcome.verdict is Verdict.PROMOTED
        decided.wait(300)
        try:
            return promote(store, outcome, reigning)
        except ChampionMoved:
            again, winner = gate(store, key, right_answers(0.8))
            assert winner is not None
            assert again.verdict is Verdict.UNCERTAIN, "it is no better than the winner"
            return None

    with ThreadPoolExecutor() as pool:
        entries = list(pool.map(retrain, stores, ("left", "right")))
    (won,) = [entry for entry in entries if entry is not None]
    assert [(e.number, e.export_key) for e in champions(stores[0], NAME)] == [
        (1, "one"),
        (2, won.export_key),
    ]
    looked = decisions(stores[0], NAME).filter(verdict="promoted")["look"]
    assert sorted(looked) == [1, 2], "two looks at once count as two"


def test_too_few_rows_and_a_metric_that_nobody_judged_are_refused(store: ArtifactStore) -> None:
    empty = ArtifactStore(Path(store.root).parent / "other")
    with pytest.raises(UserError, match=r"'all' has 20 test prompts.*fewer than 60; add 40"):
        gate(empty, "small", right_answers(0.5, rows=20))
    with pytest.raises(UserError, match=r"retrain\.guards names the set 'safety'.* there are all"):
        gate(store, "better", right_answers(0.8), guards=["safety"])
    with pytest.raises(
        UserError, match=r"'sampled_accuracy': no test prompt .* has it; it has acc"
    ):
        gate(store, "better", right_answers(0.8), metric="sampled_accuracy")


def test_rows_are_the_same_in_any_order(store: ArtifactStore) -> None:
    sides = {
        name: Side(plant(store, name, answers)[1], "rl")
        for name, answers in {
            "a": right_answers(0.5),
            "b": dict(reversed(right_answers(0.8).items())),
            "c": right_answers(0.5, test="w"),
        }.items()
    }
    assert same_rows(store, sides["a"], sides["b"])
    assert not same_rows(store, sides["a"], sides["c"])


def preferred(share: float) -> pl.DataFrame:
    """Return what a judge says that prefers the candidate's answers to ``share`` of the prompts."""
    wins = right_answers(share)
    return pl.DataFrame({"uid": list(wins), "value": [float(win) for win in wins.values()]})


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.5, Verdict.UNCERTAIN), (0.8, Verdict.PROMOTED), (0.2, Verdict.WORSE)],
)
def test_a_win_rate_decides_by_what_it_is_above_a_half(
    store: ArtifactStore, share: float, verdict: Verdict
) -> None:
    answers = right_answers(0.5)
    found, _ = gate(store, f"w{share}", answers, won=preferred(share), metric="win_rate")
    assert found.verdict is verdict
    row = found.rows[0]
    assert (row["metric"], row["champion_mean"], row["candidate_mean"]) == ("win_rate", 0.5, share)
    assert row["gain"] == pytest.approx(share - 0.5)


def test_a_judge_without_evidence_holds_the_candidate(store: ArtifactStore) -> None:
    none = NoEvidence("no win rate over the champion: judge 'taste' kept 12% of its verdicts")
    found, _ = gate(store, "unjudged", right_answers(0.9), won=none, metric="win_rate")
    assert (found.verdict, found.promotes) == (Verdict.UNCERTAIN, False)
    assert found.sentence == f"held as uncertain: {none}"
    again, _ = gate(store, "unjudged", right_answers(0.9), metric="win_rate")
    assert again.ref == found.ref, "decided once"


def test_a_win_rate_guards_another_metric(store: ArtifactStore) -> None:
    """More right answers in a way that nobody likes are no better model."""
    given = {"guards": ["win_rate"], "margin": 0.1}
    disliked, _ = gate(store, "disliked", right_answers(0.8), won=preferred(0.2), **given)
    assert disliked.verdict is Verdict.WORSE
    assert "guards not passed: win_rate" in disliked.sentence
    liked, _ = gate(store, "liked", right_answers(0.8), won=preferred(0.6), **given)
    assert liked.verdict is Verdict.PROMOTED
    assert {row["prompt_set"] for row in liked.rows} == {"all", "win_rate"}
