"""A schedule, a set or a margin that cannot be used is refused before a night's training."""

from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from schemas.recipe import Recipe
from schemas.retrain import RetrainSection

REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"cron": "every monday"},
        ["retrain.cron = 'every monday'", "wrong number of fields", "e.g. '0 3 * * 1'"],
    ),
    ({"cron": "61 * * * *"}, ["bad minute; write minute, hour"]),
    ({"cron": "0 3 * * mo"}, ["bad day-of-week"]),
    ({"cron": "0 9-3 * * *"}, ["bad hour"]),
    ({"cron": "0 3 * * 1;"}, ["bad day-of-week"]),
    ({"cron": "0 3 31 2 *"}, ["bad day-of-month", "e.g."]),
    ({"cron": "0 * * * * *"}, ["wrong number of fields"]),
    ({"cron": "@weekly"}, ["wrong number of fields"]),
    ({"timezone": "Europe/Berlinn"}, ["no such time zone", "did you mean 'Europe/Berlin'"]),
    ({"margin": -0.1}, ["retrain.margin = -0.1 is refused", "raise it"]),
    ({"guards": ["a", "a"]}, ["'a' is named twice; leave one"]),
    ({"start": "best"}, ["retrain.start = 'best' is refused"]),
    ({"min_new_rows": 0}, ["retrain.min_new_rows = 0 is refused"]),
    ({"push": "no-owner"}, ["retrain.push = 'no-owner' is refused"]),
]


def quickstart(retrain: dict[str, Any], **more: Any) -> Recipe:
    return load_recipe("quickstart", {"retrain": retrain, **more}, directory=RECIPES)


@pytest.mark.parametrize(("section", "words"), REFUSED)
def test_bad_input_is_refused_in_one_sentence(section: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        quickstart(section)
    sentence = str(refusal.value)
    assert sentence.startswith("recipe 'quickstart': retrain.")
    assert "\n" not in sentence
    for word in words:
        assert word in sentence, sentence


@pytest.mark.parametrize(
    "cron",
    [
        "* * * * *",
        "*/5 0-6/2 1,15 jan-mar MON",
        "0 3 * * 7",
        "59 23 31 12 0-6",
        "0 3 29 2 *",
        "0 3 31 2 1",
    ],
)
def test_what_crontab_takes_is_taken(cron: str) -> None:
    assert RetrainSection(cron=cron).cron == cron


def test_rules_between_sections() -> None:
    with pytest.raises(UserError, match=r"evaluate\.samples = 1 samples none; raise"):
        quickstart(
            {"metric": "sampled_accuracy"}, **{"evaluate.samples": 1, "evaluate.pass_k": [1]}
        )
    with pytest.raises(UserError, match=r"continues without SFT.* rl\.ptx\.path to a file"):
        quickstart({"start": "champion"}, **{"rl.ptx": {}})
    unjudged = {"reward.functions": [{"name": "reward_model"}], "reward_model": {}}
    with pytest.raises(UserError, match=r"retrain\.metric = 'accuracy' and .* no function that"):
        quickstart({}, **unjudged)
    with pytest.raises(UserError) as refusal:  # for its preferences, which are ranked by verdicts
        quickstart({"metric": "score"}, **unjudged)
    assert "retrain" not in str(refusal.value)


def test_a_recipe_without_the_section_is_not_retrained() -> None:
    assert load_recipe("quickstart", directory=RECIPES).retrain is None
    assert quickstart({}).retrain == RetrainSection()


@pytest.mark.parametrize(
    ("retrain", "key"),
    [({"metric": "win_rate"}, "metric"), ({"guards": ["win_rate"]}, "guards")],
)
def test_a_win_rate_needs_a_judge(retrain: dict, key: str) -> None:
    with pytest.raises(UserError, match=rf"retrain.{key} names win_rate and evaluate.win_rate is"):
        load_recipe("quickstart", {"retrain": retrain}, directory=RECIPES)
