"""A setting has the value that verl would give it, and a bad one is told by its key."""

from typing import Any

import pytest

from rlcore.verl.settings import Notes, VerlRun
from schemas.errors import UserError


def run(**values: Any) -> VerlRun:
    """Double underscores stand for dots."""
    return VerlRun(
        {k.replace("__", "."): v for k, v in values.items()}, excerpt=False, notes=Notes()
    )


def test_null_and_absent_take_the_default() -> None:
    settings = run(a=None, b=0)
    assert [settings.get(key, 7) for key in "abc"] == [7, 0, 7]
    assert [settings.has(key) for key in "abc"] == [False, True, False]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${data.n}", 4),
        ("n-${data.n}-${data.n}", "n-4-4"),
        ("${.n}", 4),
        ("${data.link}", 4),
        ("${oc.select:data.n}", 4),
        ("${oc.select:data.none,5}", 5),
        ("${oc.select:data.none}", None),
    ],
)
def test_an_interpolation_is_followed_to_its_value(written: str, value: Any) -> None:
    """Alone it keeps the value's type: '4' would not divide a batch."""
    assert run(data__n=4, data__link="${data.n}", data__x=written).get("data.x") == value


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"a": "${a}"}, "a refers to itself over a -> a"),
        ({"a": "${b}", "b": "${a}"}, "a refers to itself over a -> b -> a"),
        ({"a": "${b}"}, r"a: \$\{b\} refers to 'b', which is not set; set it"),
        ({"a": "${oc.env:HOME}"}, r"a: \$\{oc.env:HOME\} is a resolver that is not read here"),
    ],
)
def test_an_interpolation_without_value_is_told_and_shown_as_written(
    values: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        run(**values).get("a")
    assert run(**values).shown("a") == values["a"]


def test_numbers_are_read_as_yaml_leaves_them() -> None:
    """YAML takes 1e-6 for text."""
    settings = run(lr="1e-6", n=8.0, flag=True)
    assert (settings.number("lr", 1.0), settings.count("n", 1)) == (1e-6, 8)
    assert (settings.number("none", 0.5), settings.flag("flag")) == (0.5, True)


@pytest.mark.parametrize(
    ("ask", "value", "sentence"),
    [
        ("number", "many", "x = 'many' is not a number; set it to one"),
        ("number", True, "x = True is not a number; set it to one"),
        ("number", [1], r"x = \[1\] is not a number; set it to one"),
        ("count", 1.5, "x = 1.5 is not a whole number; set it to one"),
        ("count", float("inf"), "x = inf is not a whole number; set it to one"),
        ("count", "nan", "x = nan is not a whole number; set it to one"),
        ("numbers", 0.9, "x = 0.9 is no list of numbers; set it to one"),
        ("numbers", ["a"], r"x = \['a'\] is no list of numbers"),
        ("flag", 1, "x = 1 is neither True nor False; set it to one of them"),
        ("flag", "yes", "x = 'yes' is neither True nor False"),
    ],
)
def test_a_value_of_another_kind_names_its_key(ask: str, value: Any, sentence: str) -> None:
    settings = run(x=value)
    asked = {
        "number": lambda: settings.number("x", 0),
        "numbers": lambda: settings.numbers("x"),
        "count": lambda: settings.count("x", 0),
        "flag": lambda: settings.flag("x"),
    }
    with pytest.raises(UserError, match=f"^{sentence}"):
        asked[ask]()


def test_a_name_without_counterpart_is_answered_with_those_that_have() -> None:
    names = {"grpo": "one", "gae": "two"}
    assert run(x="gae").choice("x", names) == "two"
    assert run().choice("x", names) == "one"
    assert run().choice("algorithm.filter_groups.metric") == "score"
    with pytest.raises(UserError, match=r"x = 'grop' has no counterpart; grpo, gae have; did you"):
        run(x="grop").choice("x", names)


def test_a_note_is_made_once() -> None:
    settings = run()
    for _ in range(2):
        settings.note("read per GPU")
    assert settings.notes.remarks == ["read per GPU"]


@pytest.mark.parametrize(
    ("kind", "value", "ours"),
    [
        ("number", "1e-6", 1e-6),
        ("count", 8.0, 8),
        ("count", "16", 16),
        ("top_k", 0, -1),
        ("flag", False, False),
        ("text", 7, "7"),
        (["sdpa", "eager"], "sdpa", "sdpa"),
    ],
)
def test_a_value_is_read_as_its_kind_whatever_yaml_made_of_it(
    kind: str | list[str], value: Any, ours: Any
) -> None:
    assert run(a=value).read("a", kind) == ours


@pytest.mark.parametrize(
    ("kind", "value", "rule"),
    [
        ("number", True, "a = True is not a number"),
        ("number", [], r"a = \[\] is not a number"),
        ("count", "many", "a = 'many' is not a number"),
        ("count", 1.5, "a = 1.5 is not a whole number"),
        ("count", float("inf"), "a = inf is not a whole number"),
        ("count", float("nan"), "a = nan is not a whole number"),
        ("count", False, "a = False is not a number"),
        ("flag", 1, "a = 1 is neither True nor False"),
        ("flag", "True", "a = 'True' is neither True nor False"),
        (["sdpa"], "spda", "a = 'spda' has no counterpart; sdpa have; did you mean 'sdpa'"),
    ],
)
def test_a_value_of_another_kind_breaks_a_rule(
    kind: str | list[str], value: Any, rule: str
) -> None:
    with pytest.raises(UserError, match=rule):
        run(a=value).read("a", kind)
