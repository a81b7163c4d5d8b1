"""The line through what was measured."""

from pathlib import Path

import pytest

from tests.bench.figure import Growth, draw_growth
from tests.bench.growth import fitted


def test_a_line_is_found_and_says_what_it_explains(tmp_path: Path) -> None:
    xs = [1.0, 2.0, 4.0, 8.0]
    line = fitted(xs, [0.5 + 0.25 * x for x in xs])
    assert (line.fixed_s, line.slope_s) == pytest.approx((0.5, 0.25))
    assert line.r2 == pytest.approx(1.0)
    assert fitted(xs, [1.0, 4.0, 4.0, 1.0]).r2 < 0.5
    picture = tmp_path / "growth.png"
    draw_growth(
        [Growth("prompts", [(1.0, 0.5), (2.0, 1.0)], [(1.0, 0.5), (2.0, 1.0)], "")], picture
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
