"""``rl-pipeline evaluate``: the figures of the stage, for any model; kept by content, in pairs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest

from flows.cli import main
from flows.paths import RECIPES, ROOT
from rlcore.data.read import training_texts
from rlcore.models.base import build_base_model
from rlcore.models.files import model_directory
from rlcore.recipes.load import load_recipe
from rlcore.results.run import Run
from tests.flows.small_run import INLINE, SMALL, run_small

pytestmark = pytest.mark.timeout(600)
Rows = list[dict[str, Any]]
SETTINGS = [
    text
    for path, value in {**SMALL, **INLINE}.items()
    for text in ("-o", f"{path}={json.dumps(value)}")
]
STAGE = ("metric", "data_source", "subset", "value", "ci_low", "ci_high", "num_prompts")
OURS = ("metric", "data_source", "subset", "value", "low", "high", "prompts")


@pytest.fixture(scope="module")
def ran(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run that has ended."""
    folder = tmp_path_factory.mktemp("evaluated")
    run = run_small(folder, INLINE)
    assert run.returncode == 0, run.stdout[-4000:]
    return folder


@pytest.fixture
def evaluated(
    ran: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Rows]:
    """Return what ``evaluate MODEL ... quickstart`` prints of part, as JSON rows."""
    monkeypatch.chdir(ran)

    def call(*arguments: str, recipe: str = "quickstart") -> Rows:
        models = [name for name in arguments if not name.startswith("--")]
        options = [name for name in arguments if name.startswith("--")]
        assert main(["evaluate", *models, recipe, *SETTINGS, *options, "--format", "json"]) == 0
        return json.loads(capfd.readouterr().out)

    return call


def of(rows: Rows, part: str, model: str = "latest") -> Rows:
    return [row for row in rows if row["part"] == part and row["model"] == model]


@pytest.mark.slow
def test_figures_are_those_of_the_stage(evaluated: Callable[..., Rows]) -> None:
    """Another seed, prompt or template would make every figure of a model incomparable."""
    rows = evaluated("latest")
    stage = Run.open("latest").evaluation().filter(pl.col("checkpoint") == "rl")
    expected = {tuple(row[name] for name in STAGE) for row in stage.iter_rows(named=True)}
    assert {tuple(row[name] for name in OURS) for row in of(rows, "figure")} == expected
    schema = json.loads((ROOT / "docs" / "schemas" / "evaluate.schema.json").read_text())
    jsonschema.validate(rows, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.slow
def test_models_are_paired_with_the_first_and_kept_by_content(
    ran: Path, evaluated: Callable[..., Rows], tmp_path: Path
) -> None:
    run = Run.open("latest")
    policy, base = run.result("rl"), run.result("base_model")
    assert policy is not None
    assert base is not None
    copy = shutil.copytree(model_directory(run.store.directory(policy)), tmp_path / "copy")
    other = str(model_directory(run.store.directory(base)))
    rows = evaluated("latest", str(copy), other)
    same = {row["metric"]: row for row in of(rows, "difference", str(copy))}
    assert same
    assert {(row["value"], row["low"], row["high"]) for row in same.values()} == {(0, 0, 0)}
    pairs = of(rows, "difference", other)
    assert {row["metric"] for row in pairs} >= {"score", "length"}
    for row in pairs:
        assert row["low"] <= row["value"] <= row["high"]
        assert (row["prompts"], row["unmatched_first"], row["unmatched_this"]) == (16, 0, 0)
    kept = {row["model"]: row["text"] for row in rows if row["part"] == "kept"}
    before = {uri: Path(uri).stat().st_mtime_ns for uri in kept.values()}
    moved = shutil.move(copy, tmp_path / "moved")
    again = evaluated(str(moved))
    assert of(again, "kept", str(moved))[0]["text"] == kept[str(copy)]
    assert {uri: Path(uri).stat().st_mtime_ns for uri in before} == before, "nothing was made again"


@pytest.mark.slow
def test_a_split_is_evaluated_on_its_prompts_alone(
    ran: Path, evaluated: Callable[..., Rows]
) -> None:
    rows = evaluated("latest", "--split=validation")
    assert {row["subset"] for row in of(rows, "figure")} == {"validation", "all"}
    (kept,) = of(rows, "kept")
    uids = set(pl.read_parquet(f"{kept['text']}/completions.parquet")["uid"])
    run = Run.open("latest")
    dataset = run.result("prepare_data")
    assert dataset is not None
    prompts = run.store.table(dataset, "prompts").filter(pl.col("split") == "validation")
    assert uids <= set(prompts["uid"])
    assert len(uids) == 8, "evaluate.max_prompts"


@pytest.fixture(scope="module")
def scratch_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights with the recipe's tokenizer."""
    recipe = load_recipe("quickstart", {**SMALL, **INLINE}, directory=RECIPES)
    target = tmp_path_factory.mktemp("scratch") / "model"
    build_base_model(recipe.model, target, texts=training_texts(recipe.data, seed=0), seed=0)
    return target


def _without_template(model: Path) -> None:
    for file in model.glob("chat_template*"):
        file.unlink()
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("chat_template", None)
    path.write_text(json.dumps(config))


def _with_short_context(model: Path) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": 32}))


def _without_weights(model: Path) -> None:
    for file in model.glob("*.safetensors"):
        file.unlink()


@pytest.mark.parametrize(
    ("change", "said", "remedy"),
    [
        (_without_template, "no chat template", "set model.chat_template"),
        (_with_short_context, "exceeds max_position_embeddings = 32", "lower model.max_tokens"),
        (_without_weights, "holds no model*.safetensors", "save the model with save_pretrained"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused(
    change: Callable[[Path], None],
    said: str,
    remedy: str,
    scratch_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    model = shutil.copytree(scratch_model, tmp_path / "model")
    change(model)
    assert main(["evaluate", "model", "quickstart", *SETTINGS]) == 2
    error = capfd.readouterr().err.strip()
    assert error.splitlines()[-1].startswith("error: ")
    assert said in error
    assert remedy in error
    assert str(model) in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "quickstart"], "nowhere"),
        (["a/b", "quickstrat"], "quickstart"),
        (["a/b", "a/b", "quickstart"], "named twice"),
        (["a/b", "quickstart-rlhf"], "--reward-model RUN"),
        (["a/b", "quickstart", "--reward-model", "r"], "rewards with no reward model"),
    ],
)
def test_what_is_not_there_is_named(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["evaluate", *arguments]) == 2
    assert said in capfd.readouterr().err
