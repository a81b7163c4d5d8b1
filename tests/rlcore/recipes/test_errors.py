"""All errors of a recipe at once, each in one sentence on a line of its own."""

import re
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from tests.reference_pages import REFERENCE


def refusal(overrides: dict[str, Any]) -> list[str]:
    with pytest.raises(UserError) as error:
        load_recipe("quickstart", overrides, directory=RECIPES)
    return str(error.value).split("\n")


def test_every_error_of_a_file_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One error per attempt makes ten attempts of a recipe that came from elsewhere."""
    (tmp_path / "mine.yaml").write_text(
        "model: {model_name_or_path: x}\n"
        "rl: {num_generations: 8, iterations: -1, rollout: {temperature: 0, top_p: 0.5}}\n"
        "actor_rollout_ref: {actor: {optim: {lr: 1}}}\n"
    )
    assert main(["run", str(tmp_path / "mine.yaml"), "--dry-run"]) == 2
    lines = capsys.readouterr().err.removeprefix("error: ").strip().split("\n")
    assert len(lines) == 7
    assert all(line.startswith(f"recipe '{tmp_path / 'mine.yaml'}': ") for line in lines)
    for words in (
        *("data is required", "reward is required", "rl.iterations = -1"),
        *("model.model_name_or_path is not", "rl.num_generations is not", "temperature = 0"),
        "actor_rollout_ref is not a known key",
    ):
        assert sum(words in line for line in lines) == 1, words


LR = "rl.update.optimizer.lr"


def test_rules_of_one_section_and_misplaced_overrides_are_reported_together() -> None:
    lines = refusal(
        {"seed.x": 1, "rl.rollout.samples": 1, "rl.update.mini_batches": 3, "rl.iterations": 4}
    )
    assert len(lines) == 3
    assert "override 'seed' itself" in lines[0]
    assert "mini_batches = 3" in lines[1]
    assert "rollout.samples to at least 2" in lines[2]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"model": "Qwen/x"}, "model = 'Qwen/x' is refused: it is a section; write keys below it:"),
        ({"data.sources": [{"path": "x"}]}, "data.sources.0 is refused: it needs a kind; add one"),
        ({"reward.functions": "gsm8k"}, "reward.functions = 'gsm8k' is refused: it is a list; wri"),
        ({"model.revision": 1e5}, "model.revision = 100000.0 is refused: input should be a valid"),
        ({"data.deduplicate": True}, "YAML reads a bare on, off, yes or no as true or false: quot"),
        ({"evaluate.checkpoints": []}, "evaluate.checkpoints = [] is refused: tuple should have"),
        ({"evaluate.pass_k.0.x": 1}, "override 'evaluate.pass_k.0.x': 'evaluate.pass_k.0' is the"),
        ({LR: float("inf")}, f"{LR} = inf is refused: input should be a finite number; write a"),
        ({"rl.iteratons": 1}, "rl.iteratons is not a known key; did you mean 'iterations'?; valid"),
        ({"rl.lr": 1}, "rl.lr is not a known key; did you mean 'rl.update.optimizer.lr'?; valid"),
        ({"sft.lr": 1}, "sft.lr is not a known key; did you mean 'sft.optimizer.lr'?; valid keys"),
        ({"rl.zzzzz": 1}, "rl.zzzzz is not a known key; valid keys there: algorithm, checkpoint,"),
        ({"rl.rollout.prompts": "many"}, "unable to parse string as an integer; write a whole num"),
    ],
)
def test_each_error_is_one_sentence_with_its_remedy(
    overrides: dict[str, Any], sentence: str
) -> None:
    (line,) = refusal(overrides)
    assert sentence in line


@pytest.mark.parametrize(
    ("overrides", "anchor"),
    [
        ({"rl.iteratons": 3}, "rl"),
        ({"rl.rollout.num_generation": 8}, "rlrollout"),
        ({"seed": "x"}, "top-level"),
        ({"data.sources": [{"kind": "arithmetic", "trian": 5}]}, "data"),
        ({"model.max_tokens": 64}, "data"),  # a rule between sections: the first key that it names
        ({"evaluate.checkpoints": ["sft"]}, "evaluate"),
        ({"rl.critic.init": "policy"}, "rl"),  # a rule of a section
        ({"model.adapter.rank": 0}, "modeladapter"),
        ({"reward_models.mine.dtype": "x"}, "reward_modelsname"),
    ],
)
def test_an_error_ends_with_the_place_of_its_section_in_the_reference(
    overrides: dict[str, Any], anchor: str
) -> None:
    headings = re.findall(r"(?m)^#+ (.+)$", REFERENCE.read_text(encoding="utf-8"))
    assert anchor in {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}
    with pytest.raises(UserError) as refused:
        load_recipe("quickstart", overrides, directory=RECIPES)
    ends = [line.rpartition("#")[2] for line in str(refused.value).splitlines()]
    assert f"{anchor})" in ends, str(refused.value)
