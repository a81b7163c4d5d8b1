"""The command line: run, plan, choose or translate a recipe; see and query what runs recorded."""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from flows.commands.champions import add_champions
from flows.commands.compare import add_compare
from flows.commands.data import add_data
from flows.commands.doctor import add_doctor
from flows.commands.evaluate import add_evaluate
from flows.commands.evolve import add_evolve
from flows.commands.explain import add_explain
from flows.commands.export import add_export, add_replay
from flows.commands.lineage import add_lineage
from flows.commands.recipes import add_algorithms, add_models, add_recipes
from flows.commands.report import add_report
from flows.commands.reward import add_reward
from flows.commands.run import add_fork, add_rerun, add_run
from flows.commands.runs import add_runs, add_stop, add_watch
from flows.commands.sql import add_ask, add_sql, add_tables
from flows.commands.status import add_status
from flows.commands.store import add_store
from flows.commands.up import add_deploy, add_down, add_open, add_up
from flows.commands.worker import add_worker
from flows.inline import INTERRUPTED
from flows.output import drop_closed_stdout
from flows.study import add_study
from rlcore.cluster.host_settings import set_variables, switch_off
from rlcore.recipes.redaction import harmless
from schemas.errors import UserError

SCRIPTS = (".sh", ".yaml", ".yml", ".txt", ".log")  # what a verl run is kept in
ADD = (  # each adds its subcommand to the subparsers
    *(add_open, add_run, add_watch, add_runs, add_stop, add_study, add_sql, add_lineage, add_ask),
    *(add_tables, add_report, add_compare, add_recipes, add_algorithms, add_explain, add_data),
    *(add_reward, add_deploy, add_up, add_down, add_status, add_doctor),
    *(add_rerun, add_replay, add_export, add_evaluate, add_fork),
    *(add_evolve, add_champions, add_worker, add_store, add_models),
)
FAILED, WRONG, UNREAD = 1, 2, 141  # docs/reference/exit_codes.md, as INTERRUPTED


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code. A UserError ends in its sentence, without a
    traceback, and so in silence does output that nobody reads (``| head -1``)."""
    try:
        try:
            return _command(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not drop_closed_stdout():  # another pipe
            raise
        return UNREAD


def _command(arguments: list[str] | None) -> int:
    options = create_parser().parse_args(arguments)
    switch_off()
    set_variables()
    try:
        return options.command(options)
    except UserError as error:
        print(f"error: {harmless(str(error))}", file=sys.stderr)
        return _code(error)
    except KeyboardInterrupt as stopped:
        print(str(stopped) or "Stopped.", file=sys.stderr)
        return INTERRUPTED


def _code(error: UserError) -> int:
    """Return ``FAILED`` for what no other input would have prevented, else ``WRONG``."""
    from flows.services import ServiceError
    from rlcore.store.checks import ArtifactError

    return FAILED if isinstance(error, ServiceError | ArtifactError) else WRONG


def _from_verl(options: argparse.Namespace) -> int:
    from rlcore.verl.translate import render, translate

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
        print(f"wrote {options.out}; next: {translation.next_command(str(options.out))}")
    return 0


def create_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rl-pipeline", description=__doc__)
    parser.add_argument(
        "--version",
        action="version",
        version=f"%(prog)s {version('rl-pipeline')}",
        help="print the version and exit",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    for add in ADD:
        add(commands)
    _add_from_verl(commands)
    return parser


def _add_from_verl(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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
