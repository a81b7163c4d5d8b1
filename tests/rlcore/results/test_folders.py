"""Where runs keep their files: the folder of a report that nobody guesses."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlcore.results.folders import RECIPE, report_folder, run_names


def _run(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "quickstart-0123abcd"
    run.mkdir(parents=True)
    (run / RECIPE).write_text("name: quickstart\n")
    return run


def test_a_report_keeps_its_unguessable_folder(tmp_path: Path) -> None:
    """A link shown once must stay good, and nobody else on the machine may list the folder."""
    run = _run(tmp_path)
    folder = report_folder(run)
    assert folder.parent == tmp_path / "runs" / "reports"
    assert re.fullmatch(r"quickstart-0123abcd-[0-9a-f]{32}", folder.name)
    assert report_folder(run) == folder
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
    assert (run / ".report").stat().st_mode & 0o777 == 0o600
    folder.rmdir()
    assert report_folder(run) == folder
    assert folder.is_dir()


def test_processes_that_ask_at_once_are_given_one_folder(tmp_path: Path) -> None:
    """Of two folders one would be empty, and every link to it dead."""
    run = _run(tmp_path)
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: report_folder(run), range(64)))
    assert len(found) == 1
    assert list((tmp_path / "runs" / "reports").iterdir()) == list(found)
    assert [path.name for path in run.iterdir() if path.name.startswith(".report")] == [".report"]


def test_reports_are_no_run(tmp_path: Path) -> None:
    """A list of runs with "reports" in it would offer a name that no command can open."""
    report_folder(_run(tmp_path))
    assert run_names(tmp_path / "runs") == ["quickstart-0123abcd"]
