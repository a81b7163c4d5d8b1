"""A study sweeps what its ``-o`` list, in all combinations, and takes a list for one value."""

import pytest

from flows.cli import main
from flows.outcomes import variants
from schemas.errors import UserError


def test_every_combination_is_a_variant_that_names_what_is_swept() -> None:
    found = variants(["rl.rollout.samples=8,16", "seed=3", "rl.update.optimizer.lr=1.0e-6, 2.0e-6"])
    assert [one.overrides for one in found] == [
        {"rl.rollout.samples": samples, "seed": 3, "rl.update.optimizer.lr": rate}
        for samples in (8, 16)
        for rate in (1e-6, 2e-6)
    ]
    assert found[1].values == "rl.rollout.samples=8, rl.update.optimizer.lr=2e-06"
    assert len({one.values for one in found}) == 4


def test_nothing_swept_is_one_variant() -> None:
    assert [(one.overrides, one.values) for one in variants([])] == [({}, "")]
    (one,) = variants(["rl.iterations=5", "rl.iterations=6"])
    assert (one.overrides, one.values) == ({"rl.iterations": 6}, ""), "the last one, as of `run`"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k=[1,2]", [[1, 2]]),
        ("k=[1],[1,2]", [[1], [1, 2]]),
        ("k={a: 1, b: [2, 3]}", [{"a": 1, "b": [2, 3]}]),
        ('k="a,b"', ["a,b"]),
        ("k='a,b','c]'", ["a,b", "c]"]),
        ("k=grpo,dapo", ["grpo", "dapo"]),
        ("k=null,0.5", [None, 0.5]),
    ],
)
def test_a_comma_in_brackets_or_quotes_parts_nothing(text: str, values: list[object]) -> None:
    assert [one.overrides["k"] for one in variants([text])] == values


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["k=1,,2"], "is not valid YAML"),
        (["k=1,2", "k=3"], "k is given twice; write its values once: k=a,b"),
        (["k=1,1"], "a value is there twice"),
        (["k"], "is not of the form path=value"),
    ],
)
def test_what_cannot_be_swept_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        variants(texts)


def test_a_value_that_a_recipe_cannot_have_is_named_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["study", "quickstart", "-o", "rl.rollout.samples=8,none"]) == 2
    assert "rl.rollout.samples" in capsys.readouterr().err
