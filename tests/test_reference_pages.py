"""The generated pages are current and complete, and editors report what the loader would."""

import argparse
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml

from flows.cli import create_parser
from flows.paths import RECIPES
from flows.recipe_keys import keys
from rlcore.diagnostics.memory import OUT_OF_MEMORY
from rlcore.diagnostics.watch import CHECKS
from rlcore.recipes.load import load_recipe, recipe_names
from rlcore.rewards.registry import check_recipe_functions
from schemas.errors import UserError
from tests.reference_pages import (
    COMMANDS,
    FINDINGS,
    REFERENCE,
    SCHEMA,
    TABLES,
    commands,
    findings,
    json_schema,
    reference,
    tables_reference,
)

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
MODELINE = "# yaml-language-server: $schema=../../docs/recipe.schema.json\n"
FILES = sorted(RECIPES.glob("*.yaml"))


class Yaml12(yaml.SafeLoader):
    """Reads ``2e-6`` as a number, as editors and the loader of recipes do."""


SCIENTIFIC = re.compile(r"[0-9][0-9.]*[eE][-+]?[0-9]+$")
Yaml12.add_implicit_resolver("tag:yaml.org,2002:float", SCIENTIFIC, list("0123456789"))


def _rows(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield dotted path, kind of the section and further cells of the tables' rows."""
    kind = ""
    for line in text.partition("\n## Top level\n")[2].splitlines():
        if line.startswith("#"):
            kind = line.partition(", kind ")[2]
        elif line.startswith("| `"):
            path, *cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            yield path.strip("`"), kind, cells


def test_the_files_are_those_of_the_schema() -> None:
    message = "the schema has changed: run `make docs`"
    assert REFERENCE.read_text(encoding="utf-8") == reference(), message
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == json_schema(), message
    assert TABLES.read_text(encoding="utf-8") == tables_reference(), message


def test_every_key_is_in_the_reference_with_its_default() -> None:
    documented = {
        (path, kind): cells[1].removesuffix(" *by preset*")
        for path, kind, cells in _rows(reference())
        if "section" not in cells[0]
    }
    known = {(key.path, key.kind): key.default for key in keys() if "section" not in key.type}
    assert documented == known


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_recipe_file_is_valid_for_editors(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(MODELINE)
    VALIDATOR.validate(yaml.load(text, Yaml12))


@pytest.mark.parametrize("name", recipe_names(RECIPES))
def test_a_whole_recipe_is_valid_for_editors(name: str) -> None:
    """As every run records it: all keys, with all kinds of values."""
    VALIDATOR.validate(load_recipe(name, directory=RECIPES).model_dump(mode="json"))


@pytest.mark.parametrize(
    "text",
    [
        "data: {max_prompt_tokens: 64}",
        "data: {sources: [{kind: arithmetic}]}",
        "rl: {preset: ppo, update: {optimizer: {lr: 2e-6}}}",
        "rl: {preset: dapo, algorithm: {overlong: null}}",
        "rl: {preset: ppo, critic: {optimizer: {eps: 1e-7}}}",
        "rl: {algorithm: {advantage: 'json:dumps'}}",
        "reward: {functions: [{name: 'json:dumps', options: {any: [1, {}]}}]}",
        "extends: [quickstart, _hard]",
        "{extends: quickstart-rlhf, reward_model: {preferences: {prompts: 3}}}",
    ],
)
def test_a_part_that_the_loader_takes_is_valid_for_editors(text: str, tmp_path: Path) -> None:
    _load(text, tmp_path)
    VALIDATOR.validate(yaml.load(text, Yaml12))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{rol: {}}", ""),
        ("rl: {iteratons: 3}", "rl"),
        ("rl: {iterations: 0}", "rl.iterations"),
        ("rl: {iterations: 2.5}", "rl.iterations"),
        ("rl: {preset: grppo}", "rl.preset"),
        ("rl: {max_logprob_gap: 50}", "rl.max_logprob_gap"),
        ("rl: {rollout: {top_p: 0.9}}", "rl.rollout.top_p"),
        ("rl: {rollout: {top_k: 5}}", "rl.rollout.top_k"),
        ("rl: {algorithm: {advantage: gea}}", "rl.algorithm.advantage"),
        ("rl: {algorithm: {policy_loss: 'json:'}}", "rl.algorithm.policy_loss"),
        ("rl: {update: {optimizer: {lrr: 1}}}", "rl.update.optimizer"),
        ("rl: {update: {optimizer: {betas: [0.9]}}}", "rl.update.optimizer.betas"),
        ("rl: {critic: {clip: wide}}", "rl.critic.clip"),
        ("sft: null", "sft"),
        ("sft: {epochs: many}", "sft.epochs"),
        ("data: {deduplicate: nearly}", "data.deduplicate"),
        ("data: {sources: []}", "data.sources"),
        ("data: {sources: [{train: 4}]}", "data.sources.0"),
        ("data: {sources: [{kind: file}]}", "data.sources.0"),
        ("data: {sources: [{kind: arithmetic, steps: [2, 4]}]}", "data.sources.0"),
        ("evaluate: {pass_k: [0]}", "evaluate.pass_k.0"),
        ("evaluate: {checkpoints: best}", "evaluate.checkpoints"),
        ("reward: {functions: [{name: gsm9k}]}", "reward.functions.0.name"),
        ("reward: {functions: [{weight: 1}]}", "reward.functions.0"),
        (
            "{extends: quickstart-rlhf, reward_model: {preferences: {kind: samples, path: x}}}",
            "reward_model.preferences",
        ),
        ("name: My Recipe", "name"),
    ],
)
def test_what_the_loader_refuses_is_marked_in_editors(text: str, path: str, tmp_path: Path) -> None:
    errors = list(VALIDATOR.iter_errors(yaml.load(text, Yaml12)))
    assert {".".join(map(str, error.absolute_path)) for error in errors} == {path}
    with pytest.raises(UserError):
        _load(text, tmp_path)


def _load(text: str, folder: Path) -> None:
    """Load and check what ``text`` says over the quickstart, unless it extends another recipe."""
    shutil.copytree(RECIPES, folder, dirs_exist_ok=True)
    tree = {"extends": "quickstart", "name": "mine", **yaml.safe_load(text)}
    (folder / "mine.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    check_recipe_functions(load_recipe("mine", directory=folder))


def _names(parser: argparse.ArgumentParser, path: str) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield f"{path}{name}"
                yield from _names(child, f"{path}{name} ")


def test_the_pages_are_those_of_commands_and_checks() -> None:
    message = "commands or checks have changed: run `make docs`"
    assert COMMANDS.read_text(encoding="utf-8") == commands(), message
    assert FINDINGS.read_text(encoding="utf-8") == findings(), message


def test_the_site_leads_to_each_page() -> None:
    docs = COMMANDS.parents[1]
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    site = (docs.parent / "infra" / "site.toml").read_text(encoding="utf-8")
    assert set(re.findall(r'"(\S+\.md)"', site)) == pages


def test_every_command_and_every_finding_has_an_anchor() -> None:
    """A link to one must work from a page, a report or an error."""
    listed = re.findall(r"(?m)^## (.+)$", commands())
    assert listed == list(_names(create_parser(), ""))
    named = re.findall(r"(?m)^## (\w+)$", findings())
    assert named == [*(check.name for check in CHECKS), OUT_OF_MEMORY]
    assert len(named) == len(set(named))


def test_no_text_of_a_finding_has_an_open_placeholder() -> None:
    assert not re.search(r"[{}]|\b0\.00\b", findings().split("\n## ", 1)[1])
