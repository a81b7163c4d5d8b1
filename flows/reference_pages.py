"""Writes the generated pages of docs/reference: those of ``flows/reference.py``, commands.md from
the parsers of the command line, and findings.md from the checks of RL runs. A heading per command
and finding is its anchor."""

import argparse
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator

from flows.cli import create_parser
from flows.paths import RECIPES, ROOT
from flows.reference import REFERENCE, SCHEMA, TABLES, json_schema, reference, tables_reference
from rlcore.diagnostics.memory import MESSAGE, OUT_OF_MEMORY, remedy
from rlcore.diagnostics.types import Check, Stream
from rlcore.diagnostics.watch import CHECKS, CLEAR_AFTER
from rlcore.recipes.load import load_recipe
from rlcore.results.questions import QUESTIONS
from schemas.recipe import Recipe

COMMANDS = ROOT / "docs" / "reference" / "commands.md"
FINDINGS = ROOT / "docs" / "reference" / "findings.md"
EXAMPLE = "quickstart"  # the recipe whose thresholds stand for those that depend on the recipe
NOT_SHOWN = (None, False, argparse.SUPPRESS)  # defaults that say nothing
UNLISTED = ("help", argparse.SUPPRESS)  # --help, and the subcommands, which have their own headings

COMMANDS_HEAD = """# Commands

Written by `make docs` from the command line itself; `rl-pipeline COMMAND --help` prints the same.
What a command's exit code means is on [its own page](exit_codes.md). JSON that a command prints
with `--format json` has a schema of the command's name in `docs/schemas`.
"""
FINDINGS_HEAD = f"""# Findings

Written by `make docs` from the checks in `rlcore/diagnostics`. A check reads the metrics of each RL
iteration. It reports a finding when its problem has lasted for the given number of iterations in a
row, and says so again when {CLEAR_AFTER} healthy iterations in a row have ended it. Findings are in
the log, on the run's page, in `summary.json` and in the table `diagnostics`. In the texts below,
`…` stands for a measured number. What depends on the recipe is that of `{EXAMPLE}`.
"""


def commands() -> str:
    """Return the reference of commands as Markdown: each with its arguments and options."""

    sections = list(_commands(create_parser(), "", ""))
    parts = [COMMANDS_HEAD, "| command | does |", "|---|---|"]
    for name, about, _ in sections:
        parts.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(about)} |")
    for name, about, rows in sections:
        parts += ["", f"## {name}", "", f"{about[:1].upper()}{about[1:].rstrip('.?')}."]
        if rows:
            parts += ["", "| argument or option | default | meaning |", "|---|---|---|", *rows]
        if name == "ask":
            parts += ["", "| question | answers |", "|---|---|"]
            for key, question in QUESTIONS.items():
                said = f"{_cell(question.title)}. {_cell(question.explanation)}"
                parts.append(f"| `{key}` | {said} |")
    return "\n".join(parts) + "\n"


def _commands(
    parser: argparse.ArgumentParser, path: str, about: str
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield name, purpose and rows of options of each command below ``parser``."""
    if path:
        options = [action for action in parser._actions if action.dest not in UNLISTED]
        yield path, about, [_option(action, parser) for action in options]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, child in action.choices.items():
                about = texts.get(name, "").replace("%%", "%")
                yield from _commands(child, f"{path} {name}".strip(), about)


def _option(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Return the row of one argument or option."""
    value = action.metavar or action.dest
    if action.choices:
        value = "|".join(map(str, action.choices))
    takes = "" if action.nargs == 0 else f" {value}"
    names = ", ".join(f"{name}{takes}" for name in action.option_strings) or str(value)
    default = "" if action.default in NOT_SHOWN else f"`{action.default}`"
    said = (action.help or "") % {**vars(action), "prog": parser.prog}
    return f"| `{_cell(names)}` | {_cell(default)} | {_cell(said)} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def findings() -> str:
    """Return the reference of findings as Markdown: what each says, its threshold, its remedy."""
    recipe = load_recipe(EXAMPLE, directory=RECIPES)
    names = [*(check.name for check in CHECKS), OUT_OF_MEMORY]
    parts = [FINDINGS_HEAD, ", ".join(f"[{name}](#{name})" for name in sorted(names))]
    for check in CHECKS:
        parts += ["", f"## {check.name}", "", *_finding(check, recipe)]
    parts += ["", f"## {OUT_OF_MEMORY}", "", f"- Says: {MESSAGE}"]
    parts += ["- Ends the run: when smaller passes do not help or are not allowed"]
    parts += [f"- Remedy: {remedy(recipe, 'rl')}"]
    return "\n".join(parts) + "\n"


def _finding(check: Check, recipe: Recipe) -> Iterator[str]:
    stream = Stream(recipe)
    stream.now = defaultdict(lambda: 1.0)
    says, cure = (part(stream) if callable(part) else part for part in (check.says, check.remedy))
    says = re.sub(r"\{[^{}]*\}%?|\b0\.00\b", "…", says)
    yield f"- Says: {says}"
    metrics = ", ".join(f"`{name}`" for name in check.reads)
    yield f"- Reads: {metrics}" if metrics else "- Reads: the recipe, once, before iteration 1"
    side = "at or below" if check.below else "at or above"
    lasting = f", for {check.patience} iterations in a row" if check.patience > 1 else ""
    limit = f"{check.limit(recipe):.3g}"
    about = "" if float(limit) == check.limit(recipe) else "about "
    where = f" for `{EXAMPLE}`" if callable(check.threshold) else ""
    yield f"- Threshold: {side} {about}{limit}{where}{lasting}"
    if check.fatal_after is not None:
        yield f"- Ends the run: after {check.fatal_after} iterations in a row"
    yield f"- Remedy: {cure}"


def main() -> None:
    """Write the files atomically. Raises OSError where ``docs`` is not writable."""
    schema = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    pages = {
        REFERENCE: reference(),
        SCHEMA: schema,
        TABLES: tables_reference(),
        COMMANDS: commands(),
        FINDINGS: findings(),
    }
    for path, text in pages.items():
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
