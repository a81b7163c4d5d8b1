"""``rl-pipeline report``: the path, the address, and one sentence where it cannot."""

import re
from pathlib import Path

import pytest

from flows import local, services
from flows.cli import main
from rlcore.results.folders import report_folder
from tests.conftest import HOME, REPORTS
from tests.rlcore.report.made import MadeRun
from tests.rlcore.results.evaluated import completions, make_run

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeRun:
    """A run below the working directory, and no server of this project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "HOME", tmp_path / ".prefect")
    monkeypatch.delenv("PREFECT_API_URL")
    made = MadeRun(tmp_path / "runs")
    made.train(made.prepare(), iterations=2)
    return made


def test_it_writes_where_nobody_guesses(run: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "latest"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    path = Path(line.removeprefix("Report: "))
    assert path.absolute() == report_folder(run.folder) / "index.html"
    assert run.name in path.read_text()


def test_several_runs_and_a_file_of_ones_own(
    run: MadeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = MadeRun(tmp_path / "runs", "quickstart-0000cafe")
    other.train(other.prepare(), iterations=1)
    assert main(["report", run.name, other.name]) == 0
    path = Path(capsys.readouterr().out.removeprefix("Report: ").strip())
    assert path.parent.absolute() == report_folder(run.folder)
    assert "2 runs" in path.read_text()
    assert main(["report", run.name, "--out", "mine.html"]) == 0
    assert capsys.readouterr().out == "Report: mine.html\n"
    assert run.name in Path("mine.html").read_text()


def test_several_runs_are_compared_in_one_report(
    run: MadeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Curves over each other said that runs differ, and neither in what nor by how much."""
    curves = {"rl": {0: {"val/accuracy": 0.25}, 1: {"val/accuracy": 0.5}}}
    for digit, right in ((1, False), (2, True)):
        answers = completions({f"u{n}": right or n % 2 == 0 for n in range(20)})
        overrides = {"seed": digit}
        make_run(
            tmp_path / "runs", f"a-0000000{digit}", overrides, evaluation=answers, curves=curves
        )
    assert main(["report", "a-00000001", "a-00000002", "--out", "two.html"]) == 0
    page = Path("two.html").read_text()
    differs = page[page.index("What differs") :].partition("</table>")[0]
    assert re.findall(r"<td[^>]*>(.*?)</td>", differs) == ["seed", "1", "2"]
    paired = page[page.index("against a-00000001") :].partition("</table>")[0]
    assert re.findall(r"<td[^>]*>(.*?)</td>", paired)[:4] == ["accuracy", "0.5", "1", "0.5"]
    assert "95 % low" in paired
    (curves_of,) = re.findall(r'src="data:image/svg\+xml;base64,[^>]* title="([^"]*)"', page)
    assert curves_of == "a-00000001: 0.5; a-00000002: 0.5"


def test_it_says_where_the_server_serves_it(
    run: MadeRun,
    prefect_server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And not where a server that serves another folder would answer 404."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_server)
    monkeypatch.setattr(local, "HOME", HOME)
    assert services.find(HOME, "server") is not None
    assert main(["report", run.name]) == 0
    assert "Served" not in capsys.readouterr().out
    out = REPORTS / ("mine-" + "b" * 32)
    out.mkdir(parents=True)
    assert main(["report", run.name, "--out", str(out / "index.html")]) == 0
    address = prefect_server.removesuffix("/api") + f"/reports/{out.name}/index.html"
    assert f"Served: {address}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["quickstart-0123abce"], "did you mean 'quickstart-0123abcd'"),
        (["latest", "quickstart-0123abcd"], "is given twice; give each run once"),
        (["quickstart-00000000"], "has no stage recorded"),
        (["latest", "--out", "none/r.html"], "there is no folder 'none'; make it"),
        (["latest", "--out", "runs"], "that is a folder; give the name of a file in it"),
        (["latest", "--runs", "none"], "there is no run 'latest' in none"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], sentence: str, run: MadeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = run.folder.with_name("quickstart-00000000")
    bare.mkdir()
    recipe = (run.folder / "recipe.yaml").read_text()
    (bare / "recipe.yaml").write_text(recipe)
    (run.folder / "recipe.yaml").touch()  # the latest
    assert main(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
