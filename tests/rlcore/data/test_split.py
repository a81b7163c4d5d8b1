"""A prompt is the same prompt, on the same side of the split, in every run."""

import numpy as np
import pytest

from rlcore.data.split import content_uid, draw_of, first_for_test, last_for_validation

PROMPTS = [[{"role": "user", "content": f"What is {n} + 1?"}] for n in range(2000)]


def test_identity_is_frozen() -> None:
    """Uids stand in stored tables, and the split hangs on them: they outlive releases."""
    assert content_uid("a", [{"role": "user", "content": "é"}], None) == "a7289951fb9cc95c"


def test_identity_is_of_content_not_of_how_a_message_was_written() -> None:
    one = content_uid([{"role": "user", "content": "x"}])
    assert content_uid([{"content": "x", "role": "user"}]) == one
    assert content_uid([{"role": "user", "content": "y"}]) != one
    assert content_uid("ab", "c") != content_uid("a", "bc")
    assert content_uid(None) != content_uid("null")


DRAWS = np.array([draw_of(prompt) for prompt in PROMPTS], dtype=np.uint64)


def held_out(draws: np.ndarray, fraction: float) -> np.ndarray:
    last = last_for_validation(draws, fraction)
    return draws <= np.uint64(last) if last is not None else np.zeros(len(draws), dtype=bool)


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.5])
def test_about_the_asked_share_is_held_out(fraction: float) -> None:
    held = held_out(DRAWS, fraction).sum()
    assert held == pytest.approx(fraction * len(PROMPTS), abs=4 * (len(PROMPTS) * 0.25) ** 0.5)
    assert fraction or not held
    first = first_for_test(DRAWS, fraction)
    tested = 0 if first is None else (np.uint64(first) <= DRAWS).sum()
    assert tested == pytest.approx(held, abs=4 * (len(PROMPTS) * 0.25) ** 0.5)


def test_a_larger_share_keeps_what_a_smaller_one_held_out() -> None:
    """Training on what was validation before would make its figures incomparable."""
    assert held_out(DRAWS, 0.3)[held_out(DRAWS, 0.1)].all()


def test_validation_and_test_are_of_different_ends() -> None:
    """A share of the one moves no row of the other, whatever the two are."""
    first = first_for_test(DRAWS, 0.5)
    assert first is not None
    assert not (held_out(DRAWS, 0.49) & (np.uint64(first) <= DRAWS)).any()


@pytest.mark.parametrize("count", [2, 3, 10])
def test_of_few_prompts_at_least_one_is_held_out(count: int) -> None:
    """5 % of ten rows are half a row, and without a validation prompt no run starts."""
    for start in range(0, 200, count):
        few = DRAWS[start : start + count]
        first = first_for_test(few, 0.001)
        assert held_out(few, 0.001).sum() == 1
        assert first is not None
        assert (np.uint64(first) <= few).sum() == 1
