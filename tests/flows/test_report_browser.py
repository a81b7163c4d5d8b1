"""Reports in headless Chromium, from the server and from a disk: they draw, and run nothing."""

import http.server
import re
import secrets
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore.report.write import write_report
from tests.browser import program
from tests.conftest import REPORTS
from tests.rlcore.report.made import MadeRun

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module")
def beacon() -> Iterator[tuple[str, list[str]]]:
    """An address that hostile text calls, and the calls that came."""
    calls: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            calls.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", calls
        server.shutdown()


def _dom(url: str, profile: Path, *flags: str) -> str:
    """Return the page as Chromium has it after its scripts, if any, ran."""
    command = [program(), "--headless=new", "--no-sandbox", "--disable-gpu", *flags]
    command += [f"--user-data-dir={profile}", "--virtual-time-budget=3000", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def report(
    prefect_server: str, tmp_path_factory: pytest.TempPathFactory, beacon: tuple[str, list[str]]
) -> Path:
    """The report of a run whose every text is hostile."""
    del prefect_server
    hostile = (
        f"<script>fetch('{beacon[0]}/s'); document.title = 'owned'</script>"
        f"<img src={beacon[0]}/i onerror=\"document.title='owned'\"></pre></svg></style>"
        f"<link rel=stylesheet href={beacon[0]}/l>"
        f"<meta http-equiv=refresh content='0;{beacon[0]}/m'>"
    )
    run = MadeRun(tmp_path_factory.mktemp("hostile") / "runs")
    run.train(run.prepare(hostile, truth=hostile), iterations=3, response=hostile)
    run.evaluate(hostile, metric=f"greedy/acc{hostile}")
    folder = REPORTS / f"{run.name}-{secrets.token_hex(16)}"
    folder.mkdir(parents=True)
    return write_report(run.open(), folder)


@pytest.mark.parametrize("place", ["server", "disk"])
def test_a_report_draws_and_nothing_of_it_runs(
    place: str, report: Path, prefect_server: str, tmp_path: Path, beacon: tuple[str, list[str]]
) -> None:
    served = f"{prefect_server.removesuffix('/api')}/reports/{report.parent.name}/{report.name}"
    url = served if place == "server" else report.as_uri()
    dom = _dom(url, tmp_path)
    assert "<title>quickstart-0123abcd</title>" in dom
    assert "&lt;script&gt;fetch(" in dom, "the text is there"
    assert "<script" not in dom
    assert set(re.findall(r'<img[^>]* src="(.{11})', dom)) == {"data:image/"}
    assert beacon[1] == []
    assert dom.count("<img") >= 7


def test_a_page_that_measures_itself_finds_the_pictures(report: Path, tmp_path: Path) -> None:
    """A picture that does not load has no size; the measure is a script of this test."""
    page = tmp_path / "measured.html"
    html = re.sub(r"<meta http-equiv[^>]*>", "", report.read_text())
    measure = """<script>addEventListener('load', () => document.title =
        [...document.querySelectorAll('figure img')]
        .filter(e => !e.closest('details') || e.closest('details').open)
        .filter(e => e.complete && e.naturalWidth > 100 && e.clientWidth > 100).length + ' of '
        + document.documentElement.scrollWidth + '/' + document.documentElement.clientWidth
        )</script></body>"""
    page.write_text(html.replace("</body>", measure))
    for width in (1400, 420):
        dom = _dom(page.as_uri(), tmp_path / str(width), f"--window-size={width},900")
        found = re.search(r"<title>(\d+) of (\d+)/(\d+)</title>", dom)
        assert found is not None
        drawn, needed, there = map(int, found.groups())
        assert drawn >= 6
        assert needed <= there, "the page scrolls sideways"


def test_a_script_in_a_served_picture_does_not_run(
    prefect_server: str, tmp_path: Path, beacon: tuple[str, list[str]]
) -> None:
    """Also where somebody writes one into the folder."""
    folder = REPORTS / f"quickstart-0123abcd-{secrets.token_hex(16)}"
    folder.mkdir(parents=True)
    script = f"<script>fetch('{beacon[0]}/svg')</script>"
    (folder / "c.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg">{script}</svg>')
    (folder / "c.html").write_text(f"<title>c</title>{script}")
    for name in ("c.svg", "c.html"):
        served = f"{prefect_server.removesuffix('/api')}/reports/{folder.name}/{name}"
        assert "<script>" in _dom(served, tmp_path / name), "it is there"
    assert beacon[1] == []
    local = (folder / "c.html").as_uri()
    _dom(local, tmp_path / "local")
    assert beacon[1] == ["/svg"], "without the policy it would have run"
