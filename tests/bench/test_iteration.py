"""The arithmetic of an iteration's fixed cost."""

import pytest

from tests.bench.iteration import fixed_s


def test_the_fixed_cost_is_where_the_line_meets_no_prompts() -> None:
    prompts = (8, 16, 24, 32)
    assert fixed_s(prompts, [0.1 + 0.02 * count for count in prompts]) == pytest.approx(0.1)
