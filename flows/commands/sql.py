"""``rl-pipeline sql``, ``ask`` and ``tables``: query what runs recorded, by SQL of one's own or by
a question that people have about a run, and what there is to ask for."""

import argparse

from flows.commands.arguments import add_runs_folder, add_store_root, check_store
from flows.output import add_format, print_rows, print_wrapped, tell
from rlcore.results.folders import LATEST, run_folder
from rlcore.results.queries import QueryResult, answer, describe
from rlcore.results.questions import QUESTIONS, question, statement
from rlcore.store.reader import ArtifactReader
from schemas.table_list import TABLES, VIEWS


def add_sql(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "statement", help='e.g. "select outcome, count(*) from rollouts group by 1"'
    )
    _add_answer(parser)
    parser.set_defaults(command=_sql)


def _add_answer(parser: argparse.ArgumentParser) -> None:
    """Add what says where is looked, and how much is printed."""
    add_store_root(parser)
    parser.add_argument(
        "--rows", type=int, default=40, help="rows of a table shown (default: %(default)s)"
    )
    add_format(parser)


def _sql(options: argparse.Namespace) -> int:
    check_store(options.store)
    _print_answer(_answer(ArtifactReader(options.store), options.statement, options), options)
    return 0


def _answer(store: ArtifactReader, sql: str, options: argparse.Namespace) -> QueryResult:
    """Return all rows of a query; of a table those shown, and one more where there are more."""
    limit = max(0, options.rows) + 1 if options.format == "table" else None
    return answer(store, sql, tell, limit=limit)


def _print_answer(found: QueryResult, options: argparse.Namespace) -> None:
    """Print the rows of a query, of a table at most ``--rows`` and whether there are more."""
    rows = found.dicts()
    shown = rows[: max(0, options.rows)] if options.format == "table" else rows
    print_rows(shown, found.columns, options.format, null="null")
    if len(shown) < len(rows):
        tell(
            f"there are more than these {len(shown)} rows; a larger --rows shows more,"
            " --format csv or json all, with every value whole"
        )


def add_ask(parser: argparse.ArgumentParser) -> None:
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
    add_runs_folder(parser)
    _add_answer(parser)
    parser.set_defaults(command=_ask)


def _ask(options: argparse.Namespace) -> int:
    if options.question is None:
        rows = [{"question": name, "answers": each.title} for name, each in QUESTIONS.items()]
        print_rows(rows, ("question", "answers"), options.format)
        return 0
    asked = question(options.question)
    check_store(options.store)
    store = ArtifactReader(options.store)
    folder = run_folder(options.run, options.runs)  # the store knows a run by its folder's name
    run = options.run if folder is None else folder.name
    sql = statement(store, options.question, run, tell)
    if options.sql:
        print(sql)
        return 0
    found = _answer(store, sql, options)
    if options.format == "table":
        print(f"{asked.title}: {run}\n{asked.explanation}\n")
    if options.format == "table" and not found.rows:
        print("none")
    else:
        _print_answer(found, options)
    return 0


def add_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", nargs="?", metavar="TABLE", help="e.g. rollouts")
    add_format(parser)
    parser.set_defaults(command=tables)


def tables(options: argparse.Namespace) -> int:
    """Print each table with what it holds, or the columns of one with type and meaning."""
    texts, title = {**VIEWS, **TABLES}, ""
    if options.table is None:
        columns, rows = ("table", "holds"), list(texts.items())
    else:
        columns, rows = ("column", "type", "meaning"), describe(options.table)
        title = f"{options.table}: {texts[options.table]}"
    if options.format == "table":
        print_wrapped(columns, rows, title)
    else:
        print_rows([dict(zip(columns, row, strict=True)) for row in rows], columns, options.format)
    return 0
