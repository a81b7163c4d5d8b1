"""Where runs keep their files: names of folders, and the runs below them. Light: the command line
looks there, too."""

import os
import secrets
import tempfile
from pathlib import Path

from schemas.errors import UserError

RUNS = Path("runs")
ID_DIGITS = 8
LATEST = "latest"  # the run that was started last
STORE_FOLDER = "store"  # in the output_dir of a call of the Python API
SUMMARY = "summary.json"  # in a run's folder once it has completed
CALL = "call.json"  # in the output_dir of a call of the Python API: what it was given
RECIPE = "recipe.yaml"  # in a run's folder: the resolved recipe
EXPORT = "export.json"  # in an exported model's folder: what it is, and its proof
EXPORTS = "exports"  # in a run's folder: models exported of its iterations
REPORTS = "reports"  # below RUNS: what the server serves of runs to who knows the path
REPORT_NAME = ".report"  # in a run's folder: the name of its folder below REPORTS


def run_directory(recipe_name: str, flow_run_id: str) -> Path:
    """Return the folder of a flow run: ``runs/<recipe>-<first 8 digits of the run's id>``.

    The recipe that a run recorded counts as that run's, whose name its folder has.
    """
    path = Path(recipe_name)
    recorded = path.name == RECIPE and flow_run_digits(path.parent.name)
    stem = path.parent.name.rpartition("-")[0] if recorded else path.stem
    return RUNS / f"{stem or path.stem}-{flow_run_id[:ID_DIGITS]}"


def flow_run_digits(name: str) -> str:
    """Return the digits of the flow run's id that end the name of its folder."""
    return name.rpartition("-")[2]


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of runs below ``folder``, the newest first.

    Raises UserError where there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"--runs {folder}: there is no such folder; a run makes one")
    found = [path.parent for path in folder.glob(f"*/{RECIPE}") if not path.parent.is_symlink()]
    return sorted(found, key=lambda run: ((run / RECIPE).stat().st_mtime, run.name), reverse=True)


def run_names(runs: Path) -> list[str]:
    """Return the names of the runs below ``runs``, the newest first."""
    return [folder.name for folder in run_folders(runs)] if runs.is_dir() else []


def run_folder(name: str, runs: Path) -> Path | None:
    """Return the folder of run ``name`` below ``runs`` or at that path; None if there is none."""
    if name == LATEST:
        return next(iter(run_folders(runs)), None) if runs.is_dir() else None
    there = (place for place in (runs / name, Path(name)) if (place / RECIPE).is_file())
    return next((place.resolve() for place in there), None)


def report_folder(run_folder: Path) -> Path:
    """Return the folder of a run's report, ``runs/reports/<run>-<32 hex digits>``, made if absent.

    Nobody guesses the digits, and the server serves a file below it to who knows them. Its name is
    kept in ``.report`` of the run's folder: the same folder for every later call and process.
    """
    reports = run_folder.parent / REPORTS
    remembered = run_folder / REPORT_NAME
    if not remembered.is_file():
        _remember(remembered, f"{run_folder.name}-{secrets.token_hex(16)}")
    folder = reports / remembered.read_text(encoding="utf-8").strip()
    reports.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _remember(path: Path, name: str) -> None:
    """Write ``name`` into ``path`` whole, unless another process was faster."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(name)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)
