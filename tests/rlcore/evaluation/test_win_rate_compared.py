"""Answers of an evaluation are compared by a judge; what it cannot tell is no figure."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from flows.paths import RECIPES
from rlcore.evaluation.win_rate import (
    PAIRS,
    NoEvidence,
    greedy_answers,
    with_win_rates,
    won_prompts,
)
from rlcore.recipes.load import load_recipe
from rlcore.rewards.judges.setup import cache_folder
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.tables import validate
from schemas.errors import UserError
from schemas.recipe import Recipe
from tests.rlcore.results.evaluated import completions
from tests.rlcore.rewards.judges.asking import judge
from tests.rlcore.rewards.judges.server import Answer, JudgeServer, judge_server, prefers, says

PROMPTS = 40
Tables = dict[str, pl.DataFrame]


def recipe(folder: Path, server: JudgeServer, against: str = "sft") -> Recipe:
    asked = judge(server.url, template="{prompt} {response_a} {response_b}").model_dump()
    given = {
        "judges.taste": asked,
        "evaluate.win_rate": {"judge": "taste", "against": against},
        "store": str(folder),
    }
    return load_recipe("quickstart", given, directory=RECIPES)


def tables(**rights: Callable[[int], bool]) -> Tables:
    """Return an evaluation of checkpoints that answer 4 or 5, by the number of the prompt."""
    made = [
        completions({f"u{n:02d}": right(n) for n in range(PROMPTS)}, checkpoint=name)
        for name, right in rights.items()
    ]
    drawn, figures = zip(*made, strict=True)
    return {"completions": pl.concat(drawn), "eval_results": pl.concat(figures)}


GIVEN = {"base": lambda n: False, "sft": lambda n: n % 4 == 0, "rl": lambda n: n % 4 < 3}


def compared(folder: Path, answer: Answer, against: str = "sft") -> tuple[Tables, list[str], int]:
    lines: list[str] = []
    with judge_server(answer) as server:
        found = with_win_rates(tables(**GIVEN), recipe(folder, server, against), log=lines.append)
        return found, lines, len(server.requests)


def right(answer: str) -> float:
    return float(answer == "4")


def values(found: Tables) -> dict[str, float]:
    """Return the figures of rl on all prompts."""
    mine = (pl.col("checkpoint") == "rl") & (pl.col("subset") == "all")
    rows = found["eval_results"].filter(mine & pl.col("metric").str.starts_with("win_rate"))
    return dict(rows.select("metric", "value").rows())


def test_later_checkpoints_are_compared_and_the_pairs_kept(tmp_path: Path) -> None:
    found, lines, calls = compared(tmp_path, prefers(right))
    assert calls == PROMPTS, "half of the answers are equal, and read by nobody"
    assert values(found) == pytest.approx(
        {
            "win_rate": 0.75,
            "win_rate/length_controlled": 0.75,
            "win_rate/consistency": 1.0,
            "win_rate/first": 0.5,
        }
    )
    validate("eval_results", found["eval_results"])
    validate(PAIRS, found[PAIRS])
    pairs = found[PAIRS]
    assert pairs.select("checkpoint", "against").unique().rows() == [("rl", "sft")]
    assert pairs.filter("asked").select("answer", "other").unique().rows() == [("4", "5")]
    assert lines[-1].startswith("rl: win rate over sft 0.750 [")


def test_the_rows_answers_may_be_the_others(tmp_path: Path) -> None:
    found, _, _ = compared(tmp_path, prefers(right), "reference")
    assert set(found[PAIRS]["checkpoint"]) == {"base", "sft", "rl"}
    assert values(found)["win_rate"] == pytest.approx(0.5 * 0.75)


def test_a_judge_that_takes_the_first_answer_is_named_and_gives_no_win_rate(
    tmp_path: Path,
) -> None:
    found, lines, _ = compared(tmp_path, says("A"))
    assert values(found) == {"win_rate/consistency": 0.0, "win_rate/first": 1.0}
    assert "no win rate over sft: judge 'taste' kept 0% of its verdicts" in lines[-1]


def test_without_the_section_an_evaluation_is_as_it_was(tmp_path: Path) -> None:
    given = tables(**GIVEN)
    plain = load_recipe("quickstart", {"store": str(tmp_path)}, directory=RECIPES)
    found = with_win_rates(given, plain, log=lambda _: None)
    assert found.keys() == given.keys()
    assert all(found[name].equals(given[name]) for name in given)


def test_verdicts_of_a_lost_cache_come_back_from_the_store(tmp_path: Path) -> None:
    found, _, calls = compared(tmp_path, prefers(right))
    with judge_server(prefers(right)) as server:
        given = recipe(tmp_path, server)
        folder = cache_folder(given.store)
        for path in folder.iterdir():
            path.unlink()
        store = ArtifactStore(tmp_path)
        store.put("evaluation", "e", tables=found, lineage=Lineage("r", "c"))
        with_win_rates(tables(**GIVEN), given, log=lambda _: None)
        assert not server.requests
    assert calls == PROMPTS


def test_the_gate_is_given_a_value_per_prompt_and_none_without_evidence(tmp_path: Path) -> None:
    drawn = tables(**GIVEN)["completions"]
    ours, theirs = (greedy_answers(drawn, name) for name in ("rl", "sft"))
    with judge_server(prefers(right)) as server:
        given = recipe(tmp_path, server)
        won = won_prompts(given, ours, theirs, log=lambda _: None)
        assert won.columns == ["uid", "value"]
        assert won["value"].mean() == 0.75
        with pytest.raises(UserError, match="no evaluated prompt has its answer"):
            won_prompts(given, ours, theirs.clear(), log=lambda _: None)
    with judge_server(says("B")) as server:
        given = recipe(tmp_path / "other", server)
        said = "no win rate over the champion: judge 'taste' kept 0%"
        with pytest.raises(NoEvidence, match=said):
            won_prompts(given, ours, theirs, log=lambda _: None)
