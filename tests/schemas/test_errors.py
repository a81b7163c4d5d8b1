"""A typo is answered with the name that was meant, and nonsense with none."""

import pytest

from schemas.errors import UserError, did_you_mean


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("iteratons", "; did you mean 'iterations'?"),
        ("iterations", "; did you mean 'iterations'?"),
        ("sede", "; did you mean 'seed'?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_the_nearest_name_is_offered_if_it_is_near(name: str, answer: str) -> None:
    assert did_you_mean(name, iter(["iterations", "seed"])) == answer


def test_nothing_is_near_where_there_is_nothing() -> None:
    assert did_you_mean("x", []) == ""


def test_pydantic_takes_the_error_for_one_of_a_value() -> None:
    """Raised in a validator, it becomes the sentence of its field."""
    assert issubclass(UserError, ValueError)
