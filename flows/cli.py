"""The command line: run or plan a recipe, choose or translate one, query what runs recorded."""

import argparse
import sys
from pathlib import Path

from flows.commands.data import add_data
from flows.commands.deploy import add_deploy
from flows.commands.explain import add_explain
from flows.commands.run import add_run
from flows.commands.tables import add_tables
from flows.commands.watch import add_watch
from flows.places import RECIPES
from flows.study import add_study
from rlcore.telemetry import switch_off
from schemas.errors import UserError

SCRIPTS = (".sh", ".yaml", ".yml", ".txt", ".log")  # what a verl run is kept in


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code. A UserError ends in its sentence, without a
    traceback."""
    options = _parser().parse_args(arguments)
    switch_off()
    try:
        return options.command(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _open(options: argparse.Namespace) -> int:
    from flows import services
    from flows.local import HOME, connect
    from flows.login import open_ui

    del options
    if services.find(HOME, "server") is None:
        raise UserError("no Prefect server of this project runs; `make up` starts it")
    open_ui(connect())
    return 0


def _sql(options: argparse.Namespace) -> int:
    import polars as pl

    from rlcore.results.queries import query
    from rlcore.store.artifacts import ArtifactStore

    if "://" not in options.store and not Path(options.store).is_dir():
        raise UserError(f"--store {options.store}: there is no such folder; a run makes one")
    with pl.Config(tbl_rows=options.rows, tbl_cols=-1, fmt_str_lengths=80):
        store = ArtifactStore(options.store)
        print(query(store, options.statement, lambda line: print(line, file=sys.stderr)))
    return 0


def _recipes(options: argparse.Namespace) -> int:
    from rlcore.recipes import load_recipe, recipe_names

    del options
    for name in recipe_names(RECIPES):
        print(f"{name:20} {load_recipe(name, directory=RECIPES).description.strip()}")
    return 0


def _algorithms(options: argparse.Namespace) -> int:
    from rlcore.algorithms.catalogue import capability_table, recommendation_lines, tree_lines

    if options.scenario is not None:
        lines = recommendation_lines(options.scenario)
    else:
        lines = [*capability_table(), "", *recommendation_lines(), "", *tree_lines()]
    print("\n".join(lines))
    return 0


def _from_verl(options: argparse.Namespace) -> int:
    from rlcore.from_verl.translate import render, translate

    source = Path(options.command_or_file)
    is_file = len(options.command_or_file) < 4096 and source.is_file()
    if not is_file and source.suffix in SCRIPTS and not set(options.command_or_file) & set(" ="):
        raise UserError(f"there is no file '{source}'; give its path, or the command in quotes")
    if options.out is not None and not options.out.parent.is_dir():
        raise UserError(f"--out {options.out}: there is no folder '{options.out.parent}'; make it")
    translation = translate(
        source.read_text(encoding="utf-8") if is_file else options.command_or_file,
        name=options.name,
        train_rows=options.train_rows,
        reward=options.reward,
    )
    text = render(translation)
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text, encoding="utf-8")
        print(f"wrote {options.out}; next: rl-pipeline run {options.out} --dry-run")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rl-pipeline", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    add_run(commands)
    sql = commands.add_parser("sql", help="query rollouts, rewards, metrics, lineage with DuckDB")
    sql.add_argument("statement", help='e.g. "select outcome, count(*) from rollouts group by 1"')
    sql.add_argument("--store", default="runs/store", help="artifact store (default: %(default)s)")
    sql.add_argument("--rows", type=int, default=40, help="rows shown (default: %(default)s)")
    sql.set_defaults(command=_sql)

    ui = commands.add_parser(
        "open", help="log this browser into the Prefect UI, by a one-time link"
    )
    ui.set_defaults(command=_open)

    recipes = commands.add_parser("recipes", help="list the recipes")
    recipes.set_defaults(command=_recipes)
    _add_choosing(commands)
    add_study(commands)
    add_watch(commands)
    add_deploy(commands)
    add_data(commands)
    add_explain(commands)
    add_tables(commands)
    return parser


def _add_choosing(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    algorithms = commands.add_parser("algorithms", help="what each algorithm needs; which to take")
    algorithms.add_argument(
        "--for", dest="scenario", metavar="SCENARIO", help='e.g. --for "math problem solving"'
    )
    algorithms.set_defaults(command=_algorithms)

    verl = commands.add_parser("from-verl", help="translate a verl script or config to a recipe")
    verl.add_argument(
        "command_or_file",
        help="a script (read, never run), what `bash -x` printed of one, Hydra's config.yaml, or a"
        " command line in quotes",
    )
    verl.add_argument("--name", help="name of the recipe (default: trainer.experiment_name)")
    verl.add_argument("--out", type=Path, metavar="FILE", help="write the recipe there")
    verl.add_argument(
        "--train-rows", type=int, metavar="N", help="training rows, where the files are not here"
    )
    verl.add_argument(
        "--reward", metavar="MODULE:FUNCTION", help="reward of data that verl has one built in for"
    )
    verl.set_defaults(command=_from_verl)


if __name__ == "__main__":
    sys.exit(main())
