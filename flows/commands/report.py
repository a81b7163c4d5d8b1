"""``rl-pipeline report``: one HTML file on a run, or on several with their curves overlaid."""

import argparse
import hashlib
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from flows import local, services
from flows.commands.arguments import add_runs_folder
from flows.output import tell
from flows.report_files import PREFIX
from rlcore.report.facts import Ending
from rlcore.report.write import INDEX, write_overlay, write_report
from rlcore.results.compare import compare
from rlcore.results.folders import SUMMARY, flow_run_digits, report_folder
from rlcore.results.run import Run
from schemas.errors import UserError


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="+",
        metavar="RUN",
        help="a run's folder or 'latest'; of two or more the curves are overlaid",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write it there (default: below runs/reports)"
    )
    add_runs_folder(parser)
    parser.set_defaults(command=report)


def report(options: argparse.Namespace) -> int:
    """Write the report and print its path, and its address where a server of ours serves it."""
    runs = [Run.open(name, options.runs) for name in options.run]
    names = [run.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"the run '{twice}' is given twice; give each run once")
    for run in runs:
        _ = run.stages  # before anything is written
    out = _checked(options.out) if options.out else report_folder(runs[0].folder)
    if len(runs) == 1:
        path = out if options.out else out / INDEX
        written = write_report(runs[0], path.parent, _ending(runs[0]), name=path.name)
    else:
        digest = hashlib.sha256(chr(0).join(names).encode()).hexdigest()[:12]
        path = out if options.out else out / f"runs-{digest}.html"
        written = write_overlay(runs, path, compare(runs).sections())
    print(f"Report: {written}")
    if address := _address(written):
        print(f"Served: {address}")
    return 0


def _checked(out: Path) -> Path:
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder '{out.parent}'; make it")
    if out.is_dir():
        raise UserError(f"--out {out}: that is a folder; give the name of a file in it")
    return out


def _ending(run: Run) -> Ending | None:
    """Return what the server, if one is up, says of a run that has not completed."""
    if (run.folder / SUMMARY).is_file() or not local.attach(local.HOME):
        return None
    from flows.flow_runs import ending

    try:
        found = ending(flow_run_digits(run.name))
    except UserError as error:  # another server, which is down: the report is worth having
        tell(f"whether the run continues is not known: {error}")
        return None
    return None if found is None else Ending(*found)


def _address(path: Path) -> str | None:
    """Return the URL at which the server of this project serves ``path``; None if it does not."""
    server = services.find(local.HOME, "server")
    if server is None:
        return None
    place = "/".join(quote(part) for part in path.absolute().parts[-2:])
    url = f"http://{services.HOST}:{server.port}{PREFIX}/{place}"
    try:
        with urlopen(Request(url, method="HEAD"), timeout=2) as reply:
            return url if reply.status == 200 else None
    except (URLError, OSError):  # it serves another folder, or is of an older version
        return None
