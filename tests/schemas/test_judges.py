"""A judge that cannot work is refused before a run, in one sentence with path, rule and remedy."""

from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from schemas.recipe import Recipe
from schemas.slices import STAGE_SLICES
from tests.rlcore.rewards.judges.asking import judge

ASKS = {"name": "judge", "options": {"judge": "main"}}
FUNCTIONS = [{"name": "arithmetic"}, ASKS]


def recipe(**changes: Any) -> Recipe:
    given = {"reward.functions": FUNCTIONS, "judges.main": judge().model_dump()}
    return load_recipe("quickstart", given | changes, directory=RECIPES)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"judges.main.url": "ftp://x"}, "judges.main: url = 'ftp://x' is not an http:// or https://"),
    ({"judges.main.url": "localhost:8000/v1"}, "is not an http:// or https:// address; write that"),
    ({"judges.main.url": "http://"}, "is not an http:// or https:// address; write that"),
    ({"judges.main.url": "http://[::1"}, "is not an http:// or https:// address; write that"),
    ({"judges.main.url": "http://host:port"}, "is not an http:// or https:// address; write that"),
    ({"judges.main.url": "http://me:key@host/v1"}, "a URL with user and password, and a recipe is"),
    ({"judges.main.template": "Is it right?"}, "template holds {response} 0 times; write it once"),
    ({"judges.main.template": "{response} {response}"}, "holds {response} 2 times"),
    (
        {"judges.main.template": "{response} {promt}"},
        "template holds {promt} and there are {response}, {prompt}, {ground_truth},"
        " {response_a}, {response_b}; did you mean 'prompt'?",
    ),
    ({"judges.main.template": "{response} {}"}, "template holds {} and there are"),
    ({"judges.main.template": "{response.__class__}"}, "holds {response.__class__} and there are"),
    ({"judges.main.template": "{response!r}"}, "template formats a placeholder"),
    ({"judges.main.template": "{response} {"}, "template has a single brace"),
    ({"judges.main.scale": [1, 5]}, "both are set of choices and scale; set exactly one"),
    ({"judges.main.choices": None}, "neither is set of choices and scale; set exactly one"),
    ({"judges.main.choices": None, "judges.main.scale": [5, 5]}, "scale = [5, 5] is not a lowest"),
    ({"judges.main.choices": None, "judges.main.scale": [0, 999]}, "at most 100 apart"),
    ({"judges.main.choices": {"a": 1}}, "choices have one score"),
    ({"judges.main.choices": {"a": 1, "A": 0}}, "choices differ in capitals only"),
    ({"judges.main.choices": {"a": 1, "b\nc": 0}}, "choices holds 'b\\nc'; write words"),
    ({"judges.main.choices": {"a": 1.5, "b": 0}}, "judges.main.choices.a = 1.5 is refused"),
    ({"judges.main.max_calls": 0}, "judges.main.max_calls = 0 is refused"),
    ({"judges.main.key_env": "sk-123"}, "judges.main.key_env = 'sk-123' is refused"),
    ({"judges.main.limits.concurrency": 0}, "judges.main.limits.concurrency = 0 is refused"),
    ({"judges.main.modle": "x"}, "judges.main.modle is not a known key; did you mean 'model'?"),
    (
        {"judges.main.limits.retrys": 1},
        "judges.main.limits.retrys is not a known key; did you mean 'retries'?",
    ),
    ({"judges.Main Judge": judge().model_dump()}, "judges.Main Judge"),
    (
        {"reward.functions": [{"name": "judge", "options": {"judge": "mian"}}]},
        "reward.functions[0].options.judge = 'mian' is not in the section judges, there are main;"
        " did you mean 'main'?",
    ),
    ({"judges": {}}, "reward.functions[1].options.judge = 'main' is not in the section judges"),
    (
        {"reward.functions": [{"name": "judge"}]},
        "reward.functions[0].options = {} must name a judge",
    ),
    (
        {"reward.functions": [{"name": "judge", "options": {"judge": "main", "weight": 2}}]},
        "must name a judge and nothing else",
    ),
    ({"judges.spare": judge().model_dump()}, "judges.spare is asked by no reward function; add"),
    (
        {"judges.main.key_env": "A_KEY", "reward.env": ["A_KEY"]},
        "gives every reward function the key of judges.main.key_env; remove A_KEY there",
    ),
    (
        {"reward.functions": [ASKS], "rl.algorithm.dynamic_sampling": {"metric": "accuracy"}},
        "reward.functions holds no function that checks correctness",
    ),
]

TASTE = "judges.taste"
PAIRWISE = judge(template="{response_a} or {response_b}").model_dump()
REFUSED += [
    ({"judges.main.template": "{response_a} {response_b}"}, "choices is set and the template"),
    (
        {"judges.main.template": "{response_a}", "judges.main.choices": None},
        "template holds {response_b} 0 times; write it",
    ),
    (
        {
            "judges.main.template": "{response} {response_a} {response_b}",
            "judges.main.choices": None,
        },
        "template holds {response} and compares two responses; write {response_a}",
    ),
    (
        {"judges.main": PAIRWISE},
        "reward.functions[1].options.judge = 'main' is asked about response and its template holds",
    ),
    ({TASTE: PAIRWISE}, "judges.taste is asked by no reward function"),
    (
        {"evaluate.win_rate": {"judge": "main"}},
        "evaluate.win_rate.judge = 'main' is asked about response_a and response_b and",
    ),
    (
        {TASTE: PAIRWISE, "evaluate.win_rate": {"judge": "tast"}},
        "evaluate.win_rate.judge = 'tast' is not in the section judges, there are main, taste; did",
    ),
    (
        {
            TASTE: PAIRWISE,
            "evaluate.win_rate": {"judge": "taste", "against": "preference"},
        },
        "evaluate.win_rate.against = 'preference' leaves nothing to compare, as of",
    ),
    (
        {
            TASTE: PAIRWISE,
            "evaluate.win_rate": {"judge": "taste"},
            "evaluate.checkpoints": ["base", "rl"],
        },
        "evaluate.win_rate.against = 'sft' leaves nothing to compare",
    ),
]


def test_a_judge_that_compares_is_in_the_key_of_what_asks_it_alone() -> None:
    """Else a second judge for the evaluation would train a policy again."""
    before = recipe()
    compared = recipe(**{TASTE: PAIRWISE, "evaluate.win_rate": {"judge": "taste"}})
    changed = {s for s in STAGE_SLICES if before.slice_for(s) != compared.slice_for(s)}
    assert changed == {"evaluate"}
    assert "win_rate" not in before.slice_for("evaluate")["evaluate"]
    assert set(compared.slice_for("evaluate")["judges"]) == {"main", "taste"}


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_cannot_work_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as refusal:
        recipe(**changes)
    sentence = str(refusal.value)
    assert words in sentence
    assert "\n" not in sentence


def test_a_judge_with_a_bound_checks_correctness() -> None:
    recipe(
        **{
            "reward.functions": [ASKS],
            "rl.algorithm.dynamic_sampling": {"metric": "accuracy"},
            "judges.main.correct_from": 0.5,
        }
    )


def test_two_judges_may_be_asked() -> None:
    other = {"name": "judge", "weight": 0.0, "options": {"judge": "other"}}
    changes = {"reward.functions": [ASKS, other], "judges.other": judge(scale=(1, 10)).model_dump()}
    assert list(recipe(**changes).judges) == ["main", "other"]


CHANGES = {
    "judges.main.model": ("other", True),
    "judges.main.version": ("2", True),
    "judges.main.template": ("{response}", True),
    "judges.main.choices": ({"right": 0.5, "wrong": 0}, True),
    "judges.main.correct_from": (0.5, True),
    "judges.main.max_tokens": (99, True),
    "judges.main.constrained": (True, True),
    "judges.main.url": ("http://127.0.0.1:2/v1", False),
    "judges.main.key_env": ("OTHER_KEY", False),
    "judges.main.limits.retries": (9, False),
    "judges.main.max_calls": (77, False),
}


@pytest.mark.parametrize("path", CHANGES)
def test_what_a_judge_says_is_in_the_keys_and_where_it_is_asked_is_not(path: str) -> None:
    """A higher ceiling must not score everything again."""
    value, counts = CHANGES[path]
    before, after = recipe(), recipe(**{path: value})
    for stage in ("rl", "evaluate", "reward_model"):
        assert (before.slice_for(stage) != after.slice_for(stage)) is counts
    assert before.slice_for("sft") == after.slice_for("sft")


def test_a_recipe_without_judges_has_the_keys_it_had() -> None:
    plain = load_recipe("quickstart", directory=RECIPES)
    assert all("judges" not in plain.slice_for(stage) for stage in ("rl", "evaluate"))


def test_the_choices_of_a_scale_are_its_numbers() -> None:
    assert judge(scale=(0, 2)).scores == {"0": 0.0, "1": 0.5, "2": 1.0}
