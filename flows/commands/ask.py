"""``rl-pipeline ask``: questions that people have about a run, answered by SQL."""

import argparse
from pathlib import Path
from typing import Any

from flows.commands.arguments import add_runs_folder, add_store_root
from flows.commands.sql import print_answer, readable_store
from flows.output import add_format, print_rows, tell
from rlcore.results.folders import LATEST, RECIPE, run_folder


def add_ask(commands: Any) -> None:
    parser = commands.add_parser(
        "ask", help="questions about a run: prompts never rewarded, hacking, what changed, ..."
    )
    parser.add_argument(
        "question", nargs="?", metavar="NAME", help="which question; without one, all are listed"
    )
    parser.add_argument(
        "run", nargs="*", metavar="RUN", help="folder below runs/, or latest (the default)"
    )
    parser.add_argument(
        "--sql", action="store_true", help="print the SELECT, to build on, instead of its rows"
    )
    add_store_root(parser)
    add_runs_folder(parser)
    parser.add_argument(
        "--rows", type=int, default=40, help="rows of a table shown (default: %(default)s)"
    )
    add_format(parser)
    parser.set_defaults(command=_ask)


def _ask(options: argparse.Namespace) -> int:
    from rlcore.results.queries import answer
    from rlcore.results.questions import QUESTIONS, question, statement

    if options.question is None:
        rows = [{"question": name, "answers": each.title} for name, each in QUESTIONS.items()]
        print_rows(rows, ("question", "answers"), options.format)
        return 0
    asked, store = question(options.question), readable_store(options.store)
    runs = [_folder_name(run, options.runs) for run in options.run or [LATEST]]
    keys = _recipe_keys(*(options.runs / run for run in runs)) if len(runs) == 2 else {}
    sql = statement(store, options.question, runs, keys, tell)
    if options.sql:
        print(sql)
        return 0
    found = answer(store, sql, tell)
    if options.format == "table":
        print(f"{asked.title}: {', '.join(runs)}\n{asked.explanation}\n")
    if options.format == "table" and not found.rows:
        print("none")
    else:
        print_answer(found.dicts(), found.columns, options.format, options.rows)
    return 0


def _folder_name(run: str, runs: Path) -> str:
    """Return the name by which the store knows a run, which may be given as a path."""
    folder = run_folder(run, runs)
    return run if folder is None else folder.name


def _recipe_keys(first: Path, second: Path) -> dict[str, tuple[str | None, str | None]]:
    """Return what differs between the recipes of two runs, by dotted key; nothing where a folder
    is gone."""
    import yaml

    from rlcore.results.compare import recipe_differences

    files = [folder / RECIPE for folder in (first, second)]
    if not all(file.is_file() for file in files):
        return {}
    recipes = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    return {one.name: (one.values[0], one.values[1]) for one in recipe_differences(recipes)}
