"""The command line: run, plan, choose or translate a recipe; see and query what runs recorded."""

import argparse
import sys
from importlib import import_module
from importlib.metadata import version

from flows.inline import INTERRUPTED
from flows.output import drop_closed_stdout
from rlcore.cluster.host_settings import set_variables
from rlcore.recipes.redaction import harmless
from schemas.errors import UserError

# Where the ``add_<name>`` of each is, which adds its arguments to a parser, and what it is for. Of
# the modules only that of the command that runs is imported.
COMMANDS = {
    "open": ("commands.up", "log this browser into the Prefect UI, by a one-time link"),
    "run": ("commands.run", "run a recipe in this process, or plan it"),
    "watch": ("commands.runs", "follow a run to its table, from any terminal"),
    "runs": ("commands.runs", "list the runs: state, accuracy, export"),
    "stop": ("commands.runs", "cancel a run; the same command continues it"),
    "study": ("study", "train recipes x seeds; a table and a figure"),
    "sql": ("commands.sql", "query rollouts, rewards, metrics, lineage with DuckDB"),
    "lineage": (
        "commands.lineage",
        "what a run, artifact or exported model was made from, verified",
    ),
    "ask": (
        "commands.sql",
        "questions about a run: prompts never rewarded, hacking, skipped rows, ...",
    ),
    "tables": ("commands.sql", "list the tables of `sql`, or one's columns"),
    "report": (
        "commands.report",
        "write a run's report, or that of several runs, as one HTML file",
    ),
    "compare": ("commands.compare", "in what runs differ, and by how much, with 95 %% intervals"),
    "recipes": ("commands.recipes", "list the recipes"),
    "algorithms": ("commands.recipes", "what each algorithm needs; which to take"),
    "explain": ("commands.explain", "what a key of a recipe means, and what sets it"),
    "data": ("commands.data", "show a recipe's data as the stages will read it"),
    "reward": ("commands.reward", "try a reward function before a run pays for it"),
    "deploy": ("commands.up", "make a deployment for your own recipe file"),
    "up": ("commands.up", "start Prefect server and worker; deploy the recipes"),
    "down": ("commands.up", "end worker and server; cancel runs that wait"),
    "status": (
        "commands.status",
        "what is up: server, worker, runs; with a recipe, which stages would run, and why",
    ),
    "doctor": ("commands.doctor", "check this machine; a remedy for each problem"),
    "rerun": ("commands.run", "make a stage of a run again, and what follows of it"),
    "replay": ("commands.export", "make recorded RL iterations again: do their weights come out?"),
    "export": (
        "commands.export",
        "the model after any iteration of a run, also of one that is under way or failed",
    ),
    "evaluate": (
        "commands.evaluate",
        "evaluate any models on a recipe's data, compared prompt by prompt",
    ),
    "fork": (
        "commands.run",
        "a run that continues from a checkpoint of another, with other settings",
    ),
    "evolve": (
        "commands.evolve",
        "let a model improve its answers over rounds, without an update of weights",
    ),
    "champions": (
        "commands.champions",
        "the champions of a retrained recipe; go back to one, or name one",
    ),
    "worker": (
        "commands.worker",
        "deploy the recipes on the server of PREFECT_API_URL, and run them for it",
    ),
    "store": (
        "commands.store",
        "bytes by kind and run, pins, removal of what nothing needs, verification",
    ),
    "models": ("commands.recipes", "write a real model that needs no hub: SmolLM2-135M-Instruct"),
    "from-verl": ("commands.from_verl", "translate a verl script or config to a recipe"),
}
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
    set_variables()
    given = sys.argv[1:] if arguments is None else arguments
    options = create_parser(given[0] if given else "").parse_args(given)
    try:
        return options.command(options)
    except UserError as error:
        print(f"error: {harmless(str(error))}", file=sys.stderr)
        return _code(error)
    except PermissionError as error:
        print(f"error: {harmless(str(error))}; ask its owner, or name another", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt as stopped:
        print(str(stopped) or "Stopped.", file=sys.stderr)
        return INTERRUPTED


def _code(error: UserError) -> int:
    """Return ``FAILED`` for what no other input would have prevented, else ``WRONG``."""
    from flows.services import ServiceError
    from rlcore.store.checks import ArtifactError

    return FAILED if isinstance(error, ServiceError | ArtifactError) else WRONG


def create_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands, or one that parses ``command`` alone and knows the names
    of the others."""
    parser = argparse.ArgumentParser(prog="rl-pipeline", description=__doc__)
    parser.add_argument(
        "--version",
        action="version",
        version=f"%(prog)s {version('rl-pipeline')}",
        help="print the version and exit",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        added = commands.add_parser(name, help=text)
        if command in (None, name):
            getattr(import_module(f"flows.{module}"), f"add_{name.replace('-', '_')}")(added)
    return parser


if __name__ == "__main__":
    sys.exit(main())
