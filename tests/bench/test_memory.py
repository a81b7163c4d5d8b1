"""Growth of memory is that of the iterations after the warm ones."""

import pytest

from tests.bench.memory import WARM, growth_mib


def test_growth_is_between_the_first_and_the_last_looks_after_warming_up() -> None:
    warming = [(iteration, 100.0 + iteration) for iteration in range(WARM)]
    looks = [(iteration, 400.0 + 0.3 * iteration) for iteration in range(WARM, 1000)]
    assert growth_mib([*warming, *looks]) == pytest.approx(0.3)
    assert growth_mib([*warming, *[(i, 500.0) for i, _ in looks]]) == 0.0


def test_a_process_that_ended_before_has_no_growth() -> None:
    assert growth_mib([(WARM, 10.0)]) == 0.0
