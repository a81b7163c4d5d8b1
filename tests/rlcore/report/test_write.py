"""A report can be written at any moment of a run, shows what it should, and runs nothing."""

import re
from html.parser import HTMLParser
from pathlib import Path
from secrets import token_hex

import pytest

from rlcore.report.facts import Ending, gather
from rlcore.report.text import duration
from rlcore.report.write import write_overlay, write_report
from schemas.errors import UserError
from tests.rlcore.report.made import MadeRun

HOSTILE = (
    "<script>alert(1)</script></script></pre></style><img src=x onerror=alert(1)>"
    '" onload="alert(1) \' `{{ 7 * 7 }}` &lt; \x00 \x1b[31mred\x1b[0m \u202ereversed \ud83d'
)
# Nothing else may stand in a report: each draws, or orders text.
ELEMENTS = """
    html head meta title style body h1 h2 h3 p a b br code pre small span nav ol ul li div header
    footer details summary figure figcaption table tr th td img
"""
ATTRIBUTES = "lang charset name content http-equiv class id href title style src alt"


class _Page(HTMLParser):
    """What a browser would find in a report."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.pictures: list[str] = []
        self.text = ""
        self.html = path.read_text(encoding="utf-8")
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links |= {value or "" for name, value in attrs if name == "href"}
        self.pictures += [value or "" for name, value in attrs if name == "src"]

    def handle_data(self, data: str) -> None:
        self.text += data


def _report(run: MadeRun, folder: Path) -> _Page:
    return _Page(write_report(run.open(), folder))


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "runs")


def test_a_stage_that_begins_while_a_report_is_made_is_in_the_next(
    run: MadeRun, tmp_path: Path
) -> None:
    """A run's page failed with "has not come to the stage rl" where rl began during a pass."""
    dataset = run.prepare()
    opened = run.open()
    assert list(opened.stages) == ["prepare_data"]
    run.train(dataset, iterations=2)
    facts = gather(opened)
    assert [stage.name for stage in facts.stages] == ["prepare_data"]
    write_report(opened, tmp_path, facts=facts)
    assert [stage.name for stage in gather(run.open()).stages] == ["prepare_data", "rl"]


def test_a_finished_run(run: MadeRun, tmp_path: Path) -> None:
    run.train(run.prepare(), iterations=3)
    run.evaluate()
    run.complete()
    page = _report(run, tmp_path)
    for title in ("Reward", "Entropy, nats", "Gradient norm"):
        assert title in page.text
    order = [page.text.index(title) for title in ("Reward", "Validation accuracy", "Response len")]
    assert order == sorted(order), "what people look for first stands first"
    assert "completed" in page.text
    assert "0.750" in page.text
    assert "0.600 to 0.900" in page.text, "the interval of the evaluation"
    assert "1 not finite" in page.text, "a gradient norm that was infinite"
    assert re.search(r"iteration 3\b.*it is 7 \(iteration 3\)", page.text, re.S)
    assert "/runs/flow-run/0123abcd-0000-4000-8000-000000000000" in page.links


def test_answers_of_two_validations_stand_side_by_side(run: MadeRun, tmp_path: Path) -> None:
    """Training draws most prompts once; a validation asks the same ones every time."""
    run.train(run.prepare("How many?"), iterations=2, response="sampled")
    run.validate(0, right=0, response="I cannot")
    once = _report(run, tmp_path).text
    assert "sampled (iteration 2)" in once
    assert "I cannot" not in once, "one validation shows no change"
    run.validate(1, right=0, response="between")
    run.validate(2, right=1, response="it is 7")
    both = _report(run, tmp_path).text
    assert "sampled" not in both
    assert "between" not in both
    asked = r"iteration 0.*I cannot p0.*iteration 2.*it is 7 p0"
    assert re.search(asked, both, re.S)
    assert both.index("it is 7 p0") < both.index("I cannot p1"), "what changed stands first"


def test_nothing_in_a_report_runs_or_is_loaded(run: MadeRun, tmp_path: Path) -> None:
    """A policy writes what it is paid for; a page that ran it could read the store."""
    run.train(run.prepare(HOSTILE.encode("utf-8", "replace").decode()), iterations=3)
    run.evaluate()
    stored = write_report(run.open(), tmp_path).read_text()
    assert "<script" not in stored
    hostile = MadeRun(tmp_path / "runs", "quickstart-00000bad")
    text = HOSTILE.encode("utf-8", "replace").decode()
    hostile.train(hostile.prepare(text, truth=text), iterations=3, response=text)
    hostile.evaluate(text, metric='greedy/acc"><script>')
    ending = Ending("failed", f"the reward said {HOSTILE}")
    page = _Page(write_report(hostile.open(), tmp_path, ending))
    assert page.elements <= {*ELEMENTS.split()}
    assert page.attributes <= {*ATTRIBUTES.split()}
    assert "<script>alert(1)</script>" in page.text, "it is shown, as text"
    assert "{{ 7 * 7 }}" in page.text
    assert "the judge contradicts itself" in page.text
    assert not set(page.html) & set("\x00\x1b\u202e"), "control characters, and reversed lines"
    assert "�[31mred" in page.text
    assert all(link.startswith(("#", "/runs/flow-run/")) for link in page.links), page.links
    assert all(re.match(r"data:image/(svg\+xml|png);base64,", each) for each in page.pictures)
    assert not re.search(r"url\(|@import|https?://", page.html)


def test_a_long_completion_is_cut(run: MadeRun, tmp_path: Path) -> None:
    run.train(run.prepare(), iterations=2, response="x" * 2**20)
    path = write_report(run.open(), tmp_path)
    assert path.stat().st_size < 400_000, "the pictures"
    assert "characters left out" in path.read_text()


def test_a_run_that_has_just_begun(run: MadeRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no stage recorded"):
        write_report(run.open(), tmp_path)
    run.stage("base_model", "base_model", "b")
    page = _report(run, tmp_path)
    assert "unfinished" in page.text
    assert "No RL iteration has been recorded yet." in page.text
    assert "Nothing has been evaluated." in page.text


def test_a_run_that_was_killed(run: MadeRun, tmp_path: Path) -> None:
    """What it had is shown, and why it ended where somebody knows."""
    run.train(run.prepare(), iterations=2)
    page = _report(run, tmp_path)
    assert "in the stage rl" in page.text
    assert "iteration 2 of at most 100" in page.text
    ended = Ending("cancelled", "asked for by rl-pipeline stop")
    page = _Page(write_report(run.open(), tmp_path, ended))
    assert "asked for by rl-pipeline stop" in page.text
    (rollouts,) = (tmp_path / "runs/store/rollouts").glob("*/000002/rollouts.parquet")
    rollouts.write_bytes(b"damaged")
    assert "it is 7 (iteration 1)" in _report(run, tmp_path).text


def test_a_report_holds_no_secret(
    run: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = f"planted-{token_hex(16)}<&>"
    monkeypatch.setenv("SOME_API_KEY", planted)
    run.train(run.prepare(), iterations=1)
    ended = Ending("failed", f"{planted} at https://me:hunter22@host/?a=1&token=hunter23")
    page = _Page(write_report(run.open(), tmp_path, ended))
    assert "*** at https://***@host/?a=1&token=***" in page.text
    assert not any(secret in page.html for secret in (planted[8:20], "hunter"))


def test_a_report_is_replaced_whole(run: MadeRun, tmp_path: Path) -> None:
    run.train(run.prepare(), iterations=1)
    out = tmp_path / "out"
    out.mkdir()
    first = write_report(run.open(), out).read_text()
    assert "iteration 1 of" in first
    run.evaluate()
    assert "Nothing has been evaluated." not in write_report(run.open(), out).read_text()
    assert [path.name for path in out.iterdir()] == ["index.html"], "nothing half-written is left"


def test_runs_over_each_other(run: MadeRun, tmp_path: Path) -> None:
    run.train(run.prepare(), iterations=3)
    run.evaluate()
    other = MadeRun(tmp_path / "runs", "quickstart-0000cafe")
    other.train(other.prepare(), iterations=2)
    rows = [{"key": "rl.<b>", "value": 0.25}, {"key": "seed", "value": None}]
    page = _Page(
        write_overlay([run.open(), other.open()], tmp_path / "two.html", [("What differs", rows)])
    )
    assert page.elements <= {*ELEMENTS.split()}
    for text in (run.name, other.name, "What differs", "rl.<b>", "0.25", "0.750"):
        assert text in page.text
    reward = page.html[page.html.index("critic/score/mean") :].partition("</figure>")[0]
    assert reward.count(f"{run.name}: ") == reward.count(f"{other.name}: ") == 2


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.21, "0.2 s"), (42, "42 s"), (600, "10 min"), (7260, "2 h 01 min")]
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
