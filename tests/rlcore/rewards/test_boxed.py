r"""The last complete ``\boxed{}``, braces balanced, in linear time."""

import time

import pytest

from rlcore.rewards.boxed import joined_boxes, last_boxed


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{a \boxed{b} c}", "b"),
        (r"so $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"}\boxed{\{1, 2\}}}", r"\{1, 2\}"),
        (r"\boxed{1}\boxed{2}{\boxed{3", "2"),
        # What a few rows of MATH have.
        (r"the number is $\boxed 7$.", "7"),
        (r"$\boxed{3}$, or $\boxed 7$", "7"),
        (r"$\boxed 7$, or $\boxed{3}$", "3"),
        (r"\boxed{ }", ""),
        ("no box {1}", None),
        (r"\boxed", None),
        ("", None),
    ],
)
def test_the_last_complete_box(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 100_000,
        r"\boxed{" * 50_000 + "}" * 50_000,
        r"\boxed " * 100_000,
        "{" * 1_000_000,
        "\\boxed{1}" + "}" * 1_000_000,
        r"\boxed a" * 100_000,
        r"\boxed{1} or " * 100_000,
    ],
)
def test_a_megabyte_takes_no_time(text: str) -> None:
    start = time.process_time()  # quadratic work takes minutes
    last_boxed(text)
    joined_boxes(text)
    assert time.process_time() - start < 5
