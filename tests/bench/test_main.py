"""A benchmark prints its figures, and its exit code says whether they are within their bounds."""

import json
import sys
from types import ModuleType

import pytest

from schemas.errors import UserError
from tests.bench import __main__ as bench
from tests.bench.measures import Measure


def named(monkeypatch: pytest.MonkeyPatch, *found: Measure) -> None:
    module = ModuleType("benchmark_of_the_test")
    module.__dict__["measures"] = lambda: list(found)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(bench.BENCHMARKS, "mine", f"{module.__name__}:measures")


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
    assert report["benchmark"] == "mine"
    assert [each["met"] for each in report["measures"]] == [True, met]
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
