"""A benchmark prints its figures, and its exit code says whether they are within their bounds."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from schemas.errors import UserError
from tests.bench import __main__ as bench
from tests.bench import baselines
from tests.bench.measures import Measure


def named(monkeypatch: pytest.MonkeyPatch, *found: Measure) -> None:
    module = ModuleType("benchmark_of_the_test")
    module.__dict__["measures"] = lambda: list(found)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(bench.BENCHMARKS, "mine", f"{module.__name__}:measures")


@pytest.fixture(autouse=True)
def _results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Write nothing into the checkout."""
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "runs" / "bench.json")
    monkeypatch.setattr(baselines, "FILE", tmp_path / "baselines.json")


@pytest.mark.parametrize(
    ("value", "least", "most", "met"),
    [
        (1.2, None, 1.2, True),
        (1.21, None, 1.2, False),
        (300, 300, None, True),
        (299, 300, None, False),
        (float("nan"), 0.0, None, False),
        (float("nan"), None, 0.0, False),
        (7, None, None, True),
    ],
)
def test_the_exit_code_is_one_where_a_bound_is_broken(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: float,
    least: float | None,
    most: float | None,
    met: bool,
) -> None:
    named(monkeypatch, Measure("fine", 1.0, least=0.0), Measure("it", value, least, most, "so"))
    assert bench.main(["mine"]) == (0 if met else 1)
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert [each["met"] for each in report["mine"]] == [True, met]
    assert json.loads(bench.RESULTS.read_text()) == report
    assert ("BROKEN" in said.err) is not met
    assert "fine" in said.err


def test_an_unknown_benchmark_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench.main(["reward"]) == 2
    said = capsys.readouterr()
    assert "BENCH = 'reward' is not a benchmark" in said.err
    assert "did you mean 'rewards'" in said.err
    assert said.out == ""


def test_a_missing_input_is_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> list[Measure]:
        raise UserError("it is not there")

    named(monkeypatch)
    monkeypatch.setattr(sys.modules["benchmark_of_the_test"], "measures", missing)
    assert bench.main(["mine"]) == 2
    assert capsys.readouterr().err == "it is not there\n"


def test_a_figure_that_got_worse_fails_before_its_bound_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [Measure("rate", 4.0, least=2.0), Measure("cost", 0.1, most=0.5), Measure("free", 9.0)]
    good.append(Measure("tokens/s", 90.0, least=30.0, is_absolute=True))
    named(monkeypatch, *good)
    assert bench.main(["mine", "--record"]) == 0
    slow_machine = Measure("tokens/s", 40.0, least=30.0, is_absolute=True)
    named(monkeypatch, Measure("rate", 3.2, least=2.0), Measure("free", 1.0), slow_machine)
    assert bench.main(["mine"]) == 0  # within noise, without a bound, or of another machine
    for slower in (Measure("rate", 2.9, least=2.0), Measure("cost", 0.2, most=0.5)):
        capsys.readouterr()
        named(monkeypatch, slower)
        assert bench.main(["mine"]) == 1
        assert f"mine: {slower.name} = {slower.value:g} was" in capsys.readouterr().err


def test_a_group_is_one_table_and_a_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    named(monkeypatch, Measure("ours over theirs", 2.5, is_speedup=True), Measure("ours, s", 1.0))
    monkeypatch.setitem(bench.GROUPS, "both", ("mine", "mine"))
    picture = tmp_path / "pictures" / "speed.png"
    assert bench.main(["both", "--figure", str(picture)]) == 0
    assert capsys.readouterr().err.count("ours over theirs") == 1
    assert picture.read_bytes().startswith(b"\x89PNG")
