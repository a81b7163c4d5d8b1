"""What stands in a recipe file is what is read: no key lost, no text turned into a number."""

from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe, parse_override
from rlcore.recipes.text import read_yaml, write_yaml
from schemas.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-6", 2e-6),
        ("1E5", 1e5),
        ("-3.5e+2", -350.0),
        (".5", 0.5),
        ("7", 7),
        ("'1234e56'", "1234e56"),
        ('"2e-6"', "2e-6"),
        ("1e", "1e"),
        ("e5", "e5"),
        ("[1e2, 'x']", [100.0, "x"]),
        ("nan", "nan"),
        ("inf", "inf"),
        ("-.inf", float("-inf")),
    ],
)
def test_numbers_are_numbers_and_quoted_text_is_text(text: str, value: Any) -> None:
    """A commit that looks like a number became 1.234e+59."""
    assert read_yaml(text, "it") == value
    assert parse_override(f"model.revision={text}") == ("model.revision", value)


def test_what_is_written_reads_back_as_it_was() -> None:
    """A recorded recipe is read again by a rerun."""
    tree = {
        "texts": ["1234e56", "2e-6", "off", "null", "", "7", "1e5"],
        "lr": 2e-6,
        "n": {"a": None},
    }
    assert read_yaml(write_yaml(tree), "it") == tree


@pytest.mark.parametrize("text", ["a\x85b", "\x85", "a \x85\n b\u2028c", "word \x85" * 40])
def test_a_next_line_character_is_written_and_read_as_it_is(tmp_path: Path, text: str) -> None:
    """It came back as a space: a rerun had another instruction than the run."""
    tree = {"extends": "quickstart", "description": text, text: [text]}
    assert read_yaml(write_yaml(tree), "it") == tree
    path = tmp_path / "mine.yaml"
    path.write_text(write_yaml({"extends": "quickstart", "description": text}), encoding="utf-8")
    assert load_recipe(str(path), directory=RECIPES).description == text
    path.write_text(f'extends: quickstart\ndescription: "{text[:2]}\x85"\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"holds the character U\+0085 on line 2, which YAML reads"):
        load_recipe(str(path), directory=RECIPES)


def test_a_repeated_key_is_refused_by_name_and_line(tmp_path: Path) -> None:
    """PyYAML keeps the last one: half of a recipe can be lost without a word."""
    path = tmp_path / "twice.yaml"
    path.write_text("extends: quickstart\nrl:\n  iterations: 3\n  iterations: 4\n")
    with pytest.raises(
        UserError, match=r"twice\.yaml' is not valid YAML: the key 'iterations' is on line 3 and"
    ):
        load_recipe(str(path), directory=RECIPES)
    path.write_text("base: &b {x: 1}\nmerged: {<<: *b, x: 2}\nother: {<<: *b, y: 2}\n")
    assert read_yaml(path.read_text(), "it")["merged"] == {"x": 2}


@pytest.mark.parametrize("text", ["a: [1", "when: 2024-13-45", "a: b: c"])
def test_what_is_no_yaml_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"^it is not valid YAML: .*; close it$") as refusal:
        read_yaml(text, "it", "close it")
    assert "\n" not in str(refusal.value)


def _unfolding(levels: int, wide: int) -> str:
    lines = ["a0: &a0 [x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * wide)}]")
    return "\n".join(lines)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_unfolding(9, 9), "with its anchors unfolded it has more than 100,000 values"),
        (_unfolding(30, 2), "with its anchors unfolded it has more than 100,000 values"),
        ("a: &a {b: 1}\n" + "c: {<<: [" + "*a, " * 60_000 + "*a]}", "more than 100,000 values"),
        ("a: &a [*a]", "an anchor holds itself"),
        ("a: &a {b: {c: *a}}", "an anchor holds itself"),
        ("a: " + "[" * 5000, "nested deeper than 64 levels"),
        ("{a: " * 70 + "1" + "}" * 70, "nested deeper than 64 levels"),
        ("description: " + "x" * (1 << 21), "characters, and YAML here at most 1,048,576"),
    ],
    ids=lambda value: value[:12],
)
def test_what_would_take_all_time_or_memory_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        read_yaml(text, "recipe file 'x.yaml'")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_anchors_that_people_use_are_read() -> None:
    text = "base: &base {lr: 1}\nlist: &all [1, 2]\nboth: {<<: *base, all: *all}\nnone: &e\nn: *e"
    assert read_yaml(text, "x")["both"] == {"lr": 1, "all": [1, 2]}
    assert read_yaml("", "x") is None


def test_a_recipe_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"name: mine\ndescription: caf\xe9\n")
    with pytest.raises(UserError, match=r"mine.yaml is not UTF-8 on line 2; save it as UTF-8"):
        load_recipe(str(path), directory=tmp_path)
    path.write_bytes(b"x" * (2 << 20))
    with pytest.raises(UserError, match=r"mine.yaml has 2 MiB, and such a file at most 1"):
        load_recipe(str(path), directory=tmp_path)
