"""Writes the generated pages of docs/reference, and docs/recipe.schema.json.

    python -m tests.reference_pages

Of recipes for readers (recipe.md) and editors (the schema) from the tree of ``flows.recipe_keys``,
of tables from their contracts, of commands from the parsers of the command line, and of findings
from the checks of RL runs. A heading per command and finding is its anchor.
"""

import argparse
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator

from flows.cli import create_parser
from flows.paths import RECIPES, ROOT
from flows.recipe_keys import Key, Node, by_preset, key_of, kinds_of, recipe_tree, sections
from rlcore.diagnostics.memory import MESSAGE, OUT_OF_MEMORY, remedy
from rlcore.diagnostics.types import Check, Stream
from rlcore.diagnostics.watch import CHECKS, CLEAR_AFTER
from rlcore.recipes.errors import NAMED
from rlcore.recipes.load import load_recipe
from rlcore.results.queries import describe
from rlcore.results.questions import QUESTIONS
from schemas.algorithm import KL
from schemas.presets import PRESETS
from schemas.recipe import Recipe
from schemas.rl import RLSection
from schemas.table_list import TABLES as TEXTS
from schemas.table_list import VIEWS

REFERENCE = ROOT / "docs" / "reference" / "recipe.md"
SCHEMA = ROOT / "docs" / "recipe.schema.json"
TABLES = ROOT / "docs" / "reference" / "tables.md"
COMMANDS = ROOT / "docs" / "reference" / "commands.md"
FINDINGS = ROOT / "docs" / "reference" / "findings.md"
EXAMPLE = "quickstart"  # the recipe whose thresholds stand for those that depend on the recipe
NOT_SHOWN = (None, False, argparse.SUPPRESS)  # defaults that say nothing
UNLISTED = ("help", argparse.SUPPRESS)  # --help, and the subcommands, which have their own headings

HEAD = """# Recipe reference

Written by `make docs` from `schemas/`: change the descriptions there. Editors that know the comment
`# yaml-language-server: $schema=...` check a recipe against `docs/recipe.schema.json`.

- A **recipe** is a YAML file: `flows/recipes/NAME.yaml`, or any path. A file whose name begins with
  `_` is not a recipe, only a base for others. `model`, `data` and `reward` must be given.
- `extends: other` starts from `other.yaml` of the same folder, else from our recipe of that name;
  with `extends: [one, two]`, values of `two` override those of `one`, and values of the file itself
  override both. A path in a file of yours is that of a file beside it. Sections are merged key by
  key; values and lists are replaced whole. Two keys are not simply merged: an `rl.algorithm.kl`
  with another `where` replaces the inherited one, and a `warmup_ratio`, also as an override,
  removes the `warmup_steps` set before.
- `rl.preset` names an algorithm and sets what the recipe leaves out of `rl`: see
  [Presets](#presets). Defaults are those of `preset: {preset}`; *by preset*: others change it.
- `rl.algorithm.kl` with `where: reward` starts from `estimator: {estimator}` and `coef: {coef}`.
- Overrides (`-o rl.iterations=5`) take the dotted paths below; a number indexes a list:
  `data.sources.0.limit`.
- Numbers may be written `2e-6`; text that looks like a number, such as a commit `1234e56`, needs
  quotes. Numbers are finite. A key that appears twice in one section is an error.
- An unknown key is an error, which names the nearest key and the valid ones there. All errors of
  a recipe's text are reported at once. Rules between keys, then files and functions, are checked
  before anything starts, also by `rl-pipeline run NAME --dry-run`.

## Presets

What `rl.preset` sets, where presets differ; empty: the preset has no such section.
"""
TABLES_HEAD = """# Tables

Written by `make docs` from `schemas/tables.py`: change the descriptions there. These are the views
of `rl-pipeline sql`, over all complete artifacts of a store; `rl-pipeline tables NAME` prints one.

Rows of all runs are in one view. `records_key` says which: it is that of a stage in `run_stages`,
and that of RL in `runs`. Reward by run:

    select run, seed, avg(score) from trajectories t join runs r
    on t.records_key = r.records_key and t.iteration <= r.planned group by all

A run that took its RL from the store shares the key, and the rows, with the run that made it. So
does a longer run with the shorter one that it continued: `planned` says how many of the iterations
are a run's own. Where there are no such runs, `join runs using (records_key)` will do.

Records of one run share a key, which is in the path of their files. In plain DuckDB:
```sql
select parse_path(r.filename)[-3] as records, iteration, uid, response, score
from 'runs/store/rollouts/*/*/rollouts.parquet' r join 'runs/store/rewards/*/*/rewards.parquet' w
on parse_path(r.filename)[-3] = parse_path(w.filename)[-3] and r.trajectory_id = w.trajectory_id
```
"""
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


def reference() -> str:
    """Return the reference as Markdown: how recipes compose, the presets, a table per section."""
    kl = KL.model_validate({"where": "reward"})
    head = HEAD.format(preset=RLSection().preset, estimator=kl.estimator, coef=kl.coef)
    parts = [head, *_presets()]
    shown: set[str] = set()  # kinds of source share a section
    for path, node in sections(recipe_tree()):
        if (heading := _heading(path, node)) in shown:
            continue
        shown.add(heading)
        level = min(path.replace(".0", "").count(".") + 2, 4)
        about = re.sub(r"\bdocs/(\w+/\w+\.md)", r"[\g<0>](../\1)", node["description"])
        parts += ["", f"{'#' * level} {heading}", "", about, ""]
        parts += ["| key | type | default | limits | meaning |", "|---|---|---|---|---|"]
        for name, child in node["properties"].items():
            parts.append(_row(key_of(path, node, name), child))
    return "\n".join(parts) + "\n"


def tables_reference() -> str:
    """Return the reference of tables as Markdown: what each holds, and its columns."""
    parts = [TABLES_HEAD, "| table | holds |", "|---|---|"]
    texts = {**VIEWS, **TEXTS}
    parts += [f"| [{name}](#{name}) | {text} |" for name, text in texts.items()]
    for name, text in texts.items():
        parts += ["", f"## {name}", "", f"{text[0].upper()}{text[1:]}.", ""]
        parts += ["| column | type | meaning |", "|---|---|---|"]
        parts += [f"| `{column}` | {of} | {meaning} |" for column, of, meaning in describe(name)]
    return "\n".join(parts) + "\n"


def json_schema() -> Node:
    """Return the JSON schema (2020-12) of a recipe file, which may leave out what it extends."""
    tree = _for_editors(recipe_tree(), "")
    said = "recipes of its folder, or ours, that this one extends; a later one overrides the first"
    base = {"description": said, "type": ["string", "array"], "items": {"type": "string"}}
    tree["properties"] = {"extends": base, **tree["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Recipe", **tree}


def _presets() -> Iterator[str]:
    yield from (f"| key | {' | '.join(PRESETS)} |", "|---" * (len(PRESETS) + 1) + "|")
    for path, row in by_preset().items():
        yield f"| `{path}` | {' | '.join(row.get(name, '') for name in PRESETS)} |"


def _row(key: Key, node: Node) -> str:
    default = key.default.removeprefix("section") + " *by preset*" * bool(key.presets)
    meaning = ", ".join(_links(key.path, node)) or key.meaning
    cells = (f"`{key.path}`", key.type, default, key.limits, meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').strip() for cell in cells)} |"


def _links(path: str, node: Node) -> Iterator[str]:
    """Yield a link to each section at ``path`` itself, or in its list."""
    for at, section in sections(node, path):
        if at in (path, f"{path}.0", f"{path}.{NAMED}"):
            heading = _heading(at, section)
            anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            yield f"[{heading}](#{anchor})"


def _heading(path: str, section: Node) -> str:
    kind = section["properties"].get("kind", {}).get("const")
    return f"{path}, kind {kind}" if kind else path or "Top level"


def _for_editors(node: Node, path: str) -> Node:
    """Return the node without the defaults that an editor should not insert: those of whole
    sections, and those of a single preset."""
    node = dict(node)
    if path in by_preset():
        described = node.get("description", "")
        node["description"] = f"{described} (default by rl.preset)".strip()
    if path in by_preset() or "properties" in node or kinds_of(node):
        node.pop("default", None)
    if "patternProperties" in node:
        node["patternProperties"] = {
            pattern: _for_editors(inner, f"{path}.{NAMED}")
            for pattern, inner in node["patternProperties"].items()
        }
    if "items" in node:
        node["items"] = _for_editors(node["items"], f"{path}.0")
    if "properties" in node:
        node["properties"] = {
            key: _for_editors(child, f"{path}.{key}" if path else key)
            for key, child in node["properties"].items()
        }
    return node


def commands() -> str:
    """Return the reference of commands as Markdown: each with its arguments and options."""
    listed = list(_commands(create_parser(), "", ""))
    parts = [COMMANDS_HEAD, "| command | does |", "|---|---|"]
    for name, about, _ in listed:
        parts.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(about)} |")
    for name, about, rows in listed:
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
