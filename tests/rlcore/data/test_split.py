"""A prompt is the same prompt, on the same side of the split, in every run."""

import pytest

from rlcore.data.split import content_uid, is_validation

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


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.5])
def test_about_the_asked_share_is_held_out(fraction: float) -> None:
    held = sum(is_validation(prompt, fraction) for prompt in PROMPTS)
    assert held == pytest.approx(fraction * len(PROMPTS), abs=4 * (len(PROMPTS) * 0.25) ** 0.5)
    assert fraction or not held


def test_a_larger_share_keeps_what_a_smaller_one_held_out() -> None:
    """Training on what was validation before would make its figures incomparable."""
    small = [is_validation(prompt, 0.1) for prompt in PROMPTS]
    large = [is_validation(prompt, 0.3) for prompt in PROMPTS]
    assert all(after for before, after in zip(small, large, strict=True) if before)
