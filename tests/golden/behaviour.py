"""What a user can see of the product, as one flat table: for a change that must lose nothing.

    python -m tests.golden.behaviour    writes behaviour.json beside this file

Names are paths: ``commands/run/--watch``, ``keys/rl.update.lr``, ``tables/rollouts/token_ids``,
``recipes/quickstart/rl.iterations``, ``exit_codes/2``, ``documents/make run``. Everything
comes through an entry point or a document, so that it survives another shape of the code.
"""

import argparse
import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.cli import create_parser, main
from flows.paths import ROOT

GOLDEN = Path(__file__).with_name("behaviour.json")
TYPED = re.compile(r"^    ((?:rl-pipeline|make|prefect) [^#\n]*)", re.MULTILINE)


def behaviour() -> dict[str, str]:
    """Return path -> text of everything that this checkout offers to its users."""
    return {
        **{f"commands/{path}": text for path, text in _commands(create_parser(), "")},
        **{f"keys/{path}": text for path, text in _keys(_schema(), "")},
        **{f"tables/{path}": text for path, text in _tables()},
        **{f"recipes/{path}": text for path, text in _recipes()},
        **{f"exit_codes/{path}": text for path, text in _exit_codes()},
        **{f"documents/{path}": "" for path in _documented_commands()},
    }


def _commands(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, str]]:
    """Yield each subcommand and each of its options and arguments, with default and help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield f"{path}{name}", ""
                yield from _commands(child, f"{path}{name}/")
        elif not isinstance(action, argparse._HelpAction):
            name = "/".join(action.option_strings) or action.dest
            choices = sorted(map(str, action.choices)) if action.choices else ""
            yield f"{path}{name}", f"{action.nargs} {action.default} {choices} {action.help}"


def _schema() -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "recipe.schema.json").read_text(encoding="utf-8"))


def _keys(node: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield each dotted key of a recipe with its type, default, bounds and choices."""
    for key, child in node.get("properties", {}).items():
        name = f"{path}.{key}" if path else key
        inner = {"properties", "patternProperties", "items", "description"}
        yield name, json.dumps({k: v for k, v in child.items() if k not in inner}, sort_keys=True)
        yield from _keys(child, name)
        yield from _keys(child.get("items", {}), f"{name}.0")
        for named in child.get("patternProperties", {}).values():
            yield from _keys(named, f"{name}.NAME")


def _printed(*arguments: str) -> list[dict[str, Any]]:
    """Return what a command prints as JSON."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*arguments, "--format", "json"]) == 0, arguments
    return json.loads(out.getvalue())


def _tables() -> Iterator[tuple[str, str]]:
    for table in _printed("tables"):
        yield table["table"], ""
        for column in _printed("tables", table["table"]):
            yield f"{table['table']}/{column['column']}", column["type"]


def _recipes() -> Iterator[tuple[str, str]]:
    """Yield every value of every shipped recipe that is not the default of its key."""
    from rlcore.recipes.load import load_recipe

    for file in sorted((ROOT / "flows" / "recipes").glob("[!_]*.yaml")):
        recipe = load_recipe(file.stem, directory=file.parent)
        yield from _leaves(recipe.model_dump(mode="json", exclude_defaults=True), file.stem)


def _leaves(node: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if "/" in path else f"{path}/{key}")
    else:
        yield path, json.dumps(node).replace(str(ROOT), "ROOT")


def _exit_codes() -> Iterator[tuple[str, str]]:
    text = (ROOT / "docs" / "reference" / "exit_codes.md").read_text(encoding="utf-8")
    yield from re.findall(r"^\| (\d+) \| ([^|]+) \|", text, re.MULTILINE)


def _documented_commands() -> Iterator[str]:
    """Yield each command line that a document tells its reader to type, on whatever page."""
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for command in TYPED.findall(file.read_text(encoding="utf-8")):
            yield command.strip()


if __name__ == "__main__":
    table = json.dumps(behaviour(), indent=0, sort_keys=True, ensure_ascii=False)
    GOLDEN.write_text(table + "\n", encoding="utf-8")
