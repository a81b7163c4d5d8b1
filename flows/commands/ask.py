"""``rl-pipeline ask``: questions that people have about a run, answered by SQL."""

import argparse
from typing import Any

from flows.commands.arguments import add_runs_folder, add_store_root
from flows.commands.sql import print_answer, readable_store
from flows.output import add_format, print_rows, tell
from rlcore.results.folders import LATEST, run_folder


def add_ask(commands: Any) -> None:
    parser = commands.add_parser(
        "ask", help="questions about a run: prompts never rewarded, hacking, skipped rows, ..."
    )
    parser.add_argument(
        "question", nargs="?", metavar="NAME", help="which question; without one, all are listed"
    )
    parser.add_argument(
        "run",
        nargs="?",
        default=LATEST,
        metavar="RUN",
        help="folder below runs/, or latest (the default)",
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
    folder = run_folder(options.run, options.runs)  # the store knows a run by its folder's name
    run = options.run if folder is None else folder.name
    sql = statement(store, options.question, run, tell)
    if options.sql:
        print(sql)
        return 0
    found = answer(store, sql, tell)
    if options.format == "table":
        print(f"{asked.title}: {run}\n{asked.explanation}\n")
    if options.format == "table" and not found.rows:
        print("none")
    else:
        print_answer(found.dicts(), found.columns, options.format, options.rows)
    return 0
