"""The user's modules are found without running them."""

import shutil
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from wandb.sdk.lib.exit_hooks import ExitHooks

from flows.paths import RECIPES
from rlcore.cluster.in_process import InProcessWorker
from rlcore.plan.functions import check_functions
from rlcore.recipes.load import load_recipe, user_functions
from rlcore.rewards.pool import RewardPool
from rlcore.rewards.registry import check_recipe_functions, code_digests
from rlcore.rewards.types import RewardRow
from rlcore.rewards.worker import RewardWorker
from rlcore.store.user_modules import check_module, find_module, import_module
from schemas.errors import UserError
from schemas.recipe import Recipe

FOUR = RewardRow("t", "source", "four", None, {}, "stop", 1, "prompt")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose import fails, with a module, and a folder that is no package, in it."""
    folder = tmp_path / "mine_modules"
    (folder / "plain").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('was run')\n")
    (folder / "rewards.py").write_text("1 / 0\n")
    (folder / "plain" / "judge.py").write_text("import mine_needs_this\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mine_modules", "__init__.py"),
        ("mine_modules.rewards", "rewards.py"),
        ("mine_modules.plain.judge", "judge.py"),
        ("rlcore.rewards.gsm8k", "gsm8k.py"),
    ],
)
def test_a_module_is_found_and_no_package_on_the_way_is_run(name: str, file: str) -> None:
    """The process that checks a recipe holds the user's keys, and may be a server's."""
    spec = find_module(name)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).name == file
    check_module(f"{name}:f", "reward.functions[0].name")
    assert "mine_modules" not in sys.modules


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    "name", ["nowhere", "mine_modules.reward", "mine_modules.rewards.more", "mine_modules..x", "."]
)
def test_a_module_that_is_not_there_is_not_found(name: str) -> None:
    assert find_module(name) is None
    with pytest.raises(UserError, match=r"^a\.b = .*: there is no module .*PYTHONPATH"):
        check_module(f"{name}:f", "a.b")


def test_an_import_that_fails_is_a_sentence_with_its_place(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "__init__.py").write_text("")
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    (package / "keys.py").write_text("import os\n\nKEY = os.environ['JUDGE_KEY']\n")
    (package / "leaves.py").write_text("import sys\nsys.exit('no licence')\n")
    said = {
        "rewards": r"ZeroDivisionError: division by zero \(rewards\.py line 1\); fix the module",
        "plain.judge": r"No module named 'mine_needs_this' \(judge\.py line 1\); install what",
        "keys": r"KeyError: 'JUDGE_KEY' \(keys\.py line 3\); name the variable in reward\.env",
        "leaves": r"SystemExit: no licence \(leaves\.py line 2\)",
    }
    for module, sentence in said.items():
        name = f"mine_modules.{module}"
        with pytest.raises(UserError, match=sentence) as error:
            import_module(name, f"{name}:f", "reward.functions[0].name")
        assert str(error.value).startswith(f"reward.functions[0].name = '{name}:f' cannot be")
        assert "\n" not in str(error.value)
    sys.modules.pop("mine_modules", None)


def test_the_place_is_the_users_line_where_a_package_stands_between(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wandb replaces sys.exit, and a package that the module calls raises below its line."""
    (package / "__init__.py").write_text("")
    (package / "quits.py").write_text("import sys\n\nsys.exit('no licence')\n")
    (package / "reads.py").write_text("import json\njson.loads('{')\n")
    monkeypatch.setattr(sys, "exit", sys.exit)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    ExitHooks().hook()
    for module, place in {
        "quits": r"\(quits\.py line 3\)",
        "reads": r"\(reads\.py line 2\)",
    }.items():
        with pytest.raises(UserError, match=place):
            import_module(f"mine_modules.{module}", f"mine_modules.{module}:f", "reward")
    sys.modules.pop("mine_modules", None)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A recipe's folder with a reward file, called as a module of Python's, and one beside it."""
    folder = tmp_path / "my job"
    folder.mkdir()
    (folder / "json.py").write_text(
        "from near_mine import score\ndef near(prompt, response): return score(response)\n"
    )
    (folder / "near_mine.py").write_text("def score(text): return float(len(text))\n")
    (folder / "job.yaml").write_text(
        "model: {path: x}\n"
        "data: {sources: [{kind: gsm8k}]}\n"
        "reward: {functions: [{name: 'json.py:near'}]}\n"
    )
    return folder


def test_a_file_is_named_from_the_recipes_folder_and_imports_what_lies_beside_it(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job.parent)
    recipe = load_recipe("my job/job.yaml", directory=RECIPES)
    (function,) = recipe.reward.functions
    assert function.name == "my job/json.py:near"
    check_start_functions(recipe)
    with closing(RewardWorker(recipe.reward)) as worker:
        handle = InProcessWorker.of("reward", worker)
        (reward,) = RewardPool([handle], recipe.reward, timeout_s=60).score([FOUR])
    assert reward.score == 4.0
    assert dict(reward.parts) == {"json.py:near": 4.0}, "metrics name no folder of this machine"


def test_a_files_content_counts_in_the_key_and_its_place_does_not(job: Path) -> None:
    def keys(folder: Path) -> tuple[object, Mapping[str, str]]:
        recipe = load_recipe(str(folder / "job.yaml"), directory=RECIPES)
        return recipe.slice_for("rl")["reward"], code_digests(user_functions(recipe))

    moved = job.parent / "elsewhere"
    shutil.copytree(job, moved)
    assert keys(moved) == keys(job)
    (moved / "near_mine.py").write_text("def score(text): return 0.0\n")
    assert keys(moved)[0] == keys(job)[0]
    assert keys(moved)[1] != keys(job)[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone.py:f", ["there is no file", "gone.py", "recipe's folder"]),
        ("json.py:far", ["has no far()"]),
        ("json.py", ["is not a reward function", "path/to/file.py:function"]),
        ("json.py:", ["must be written"]),
    ],
)
def test_a_wrong_file_or_function_ends_in_a_sentence(
    name: str, words: list[str], job: Path
) -> None:
    text = (job / "job.yaml").read_text().replace("json.py:near", name)
    (job / "job.yaml").write_text(text)
    recipe = load_recipe(str(job / "job.yaml"), directory=RECIPES)
    with pytest.raises(UserError) as error:
        check_start_functions(recipe)
    assert str(error.value).startswith("reward.functions[0].name = ")
    assert all(part in str(error.value) for part in words), error.value


def check_start_functions(recipe: Recipe) -> None:
    """Check the recipe's functions as the start of a run does."""
    check_recipe_functions(recipe)
    check_functions(recipe)


LOSS = "def f(ratio, logprobs, advantages, *, clip_low, clip_high, clip_dual):\n    return -ratio\n"
ESTIMATOR = "def f(batch, scale=1.0):\n    return scale * batch.scores\n"


def own_algorithm(folder: Path, loss: str = LOSS) -> Recipe:
    """A recipe file with a loss and an estimator in files beside it."""
    folder.mkdir()
    (folder / "loss.py").write_text(loss)
    (folder / "spread.py").write_text(ESTIMATOR)
    recipe = folder / "mine.yaml"
    own = "{advantage: spread.py:f, advantage_options: {scale: 2}, policy_loss: loss.py:f}"
    recipe.write_text(f"name: mine\nextends: quickstart\nrl: {{algorithm: {own}}}\n")
    return load_recipe(str(recipe), {}, directory=RECIPES)


def test_loss_and_estimator_are_named_by_their_file_as_rewards_are(tmp_path: Path) -> None:
    """Found from the recipe's folder; the key holds their content, and not where they lie."""
    one, moved = own_algorithm(tmp_path / "one"), own_algorithm(tmp_path / "moved")
    changed = own_algorithm(tmp_path / "changed", LOSS.replace("-ratio", "-2 * ratio"))
    assert one.rl.algorithm.policy_loss == f"{tmp_path}/one/loss.py:f"
    check_recipe_functions(one)
    check_functions(one)
    digests = [code_digests(user_functions(recipe)) for recipe in (one, moved, changed)]
    assert {"loss.py:f", "spread.py:f"} <= digests[0].keys()
    assert digests[0] == digests[1]
    assert digests[0]["loss.py:f"] != digests[2]["loss.py:f"]
    two = [f"{tmp_path}/{folder}/loss.py:f" for folder in ("one", "changed")]
    assert len(code_digests(two)) == 2, "one file would hide the other's changes from the key"
    assert one.slice_for("rl") == moved.slice_for("rl")
    assert one.slice_for("rl")["rl"]["algorithm"]["advantage"] == "spread.py:f"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(*("def g(): ...\n", r"loss\.py has no f\(\)"), marks=pytest.mark.slow),
        ("def f(ratio): ...\n", "it is called as f.ratio, logprobs, advantages"),
        ("1 / 0\n", r"cannot be imported: ZeroDivisionError: .* \(loss\.py line 1\); fix the modu"),
        ("import mine_lacks\n", "install what it imports, or put its folder on PYTHONPATH"),
        pytest.param(*("f = 3\n", "is of type int, not a function"), marks=pytest.mark.slow),
    ],
)
def test_a_loss_file_that_cannot_work_is_refused_before_the_run(
    text: str, said: str, tmp_path: Path
) -> None:
    recipe = own_algorithm(tmp_path / "mine", text)
    check_recipe_functions(recipe)
    with pytest.raises(UserError, match=said) as refusal:
        check_functions(recipe)
    assert str(refusal.value).startswith(f"rl.algorithm.policy_loss = '{tmp_path}/mine/loss.py:f'")
    (tmp_path / "mine" / "loss.py").unlink()
    with pytest.raises(UserError, match=r"policy_loss = .*: there is no file .*/mine/loss\.py"):
        check_recipe_functions(recipe)
