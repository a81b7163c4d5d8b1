"""Settings are read out of a command, a block of overrides or YAML, or the reader is told why."""

import pytest

from rlcore.from_verl.text import read_settings
from schemas.errors import UserError

MAIN = "python3 -m verl.trainer.main_ppo"


def values(text: str) -> dict:
    return read_settings(text).values


def test_a_command_is_whole_and_a_block_of_settings_an_excerpt() -> None:
    """What an excerpt does not show has the values of verl's example, not its defaults."""
    whole, part = read_settings(f"{MAIN} a.b=1"), read_settings("a.b=1\nc.d=x")
    assert (whole.values, whole.excerpt) == ({"a.b": 1}, False)
    assert (part.values, part.excerpt) == ({"a.b": 1, "c.d": "x"}, True)
    for more in ("...", "…", "$@"):
        assert read_settings(f"{MAIN} a.b=1 {more}").excerpt


def test_a_later_setting_replaces_an_earlier_one_and_a_deleted_one_is_gone() -> None:
    found = read_settings(f"{MAIN} a=1 b=2 a=3 ~b +c=4 ++d=5 ~e")
    assert (found.values, found.deleted) == ({"a": 3, "c": 4, "d": 5}, ("b", "e"))


def test_what_follows_the_command_is_no_setting() -> None:
    for tail in ("2>&1 | tee log", "> log x=1", "&& echo y=2", "; z=3", "&"):
        assert values(f"{MAIN} a=1 {tail}") == {"a": 1}, tail


def test_lines_are_joined_and_comments_left_out() -> None:
    assert values(f"# x=9\n{MAIN} a=1 \\\n  b='x y' \\\n c=[1,2] # d=3") == {
        "a": 1,
        "b": "x y",
        "c": [1, 2],
    }


def test_variables_have_the_values_of_the_lines_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTSIDE", "7")
    monkeypatch.delenv("UNSET", raising=False)
    text = "n=4; export m=$n\nk=${UNSET:-$m}\n"
    found = values(
        f"{text}{MAIN} a=$n b=$OUTSIDE c=${{UNSET:-x}} d=$((n * 2 + 1)) e=p/$k/q f=$((9/2)) g='x;y'"
    )
    assert found == {"a": 4, "b": 7, "c": "x", "d": 9, "e": "p/4/q", "f": 4, "g": "x;y"}


def test_an_interpolation_of_hydras_is_no_shell_variable() -> None:
    assert values(f"{MAIN} a='${{data.x}}'") == {"a": "${data.x}"}


@pytest.mark.parametrize("text", ["data:\n  x: 1\n  y: {z: 2}", "data.x: 1\ndata: {y: {z: 2}}"])
def test_yaml_is_flattened_to_dotted_keys(text: str) -> None:
    found = read_settings(text)
    assert (found.values, found.excerpt) == ({"data.x": 1, "data.y.z": 2}, True)


def test_yaml_leaves_out_what_hydra_does_not_set() -> None:
    assert values("a: {_target_: x.Y, b: '???', c: null, d: [1, {e: 2}]}") == {
        "a.c": None,
        "a.d": [1, {"e": 2}],
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "nothing to translate: give a verl command line"),
        ("# only\n\n", "nothing to translate"),
        (
            "python3 -m verl.model_merger merge",
            "every run ends with its model in Hugging Face",
        ),
        ("python3 -m trl.sft", "'trl.sft' is not verl's trainer; a command starts with python3 -m"),
        ("python3 -m", "'' is not verl's trainer"),
        (f"{MAIN} a='1", "the command does not read as shell: .*; close the quotes"),
        (f"{MAIN} a=$NOBODY_SET_THIS", r"shell variable \$NOBODY_SET_THIS has no value"),
        (f"{MAIN} lonely", "'lonely' is not of the form key=value"),
        (f"{MAIN} =3", "'=3' is not of the form key=value"),
        (f"{MAIN} a=$((2**8))", r"\$\(\(2\*\*8\)\) is arithmetic that is not supported"),
        (f"{MAIN} a=$((2 +))", r"\$\(\(2\+\)\) is not arithmetic; write the number"),
        (f"{MAIN} a=$((1 / 0))", r"\$\(\(1/0\)\) is not arithmetic; write the number"),
        ("a: [1", "the config is not valid YAML"),
    ],
)
def test_text_that_cannot_be_read_is_told_in_one_line(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        read_settings(text)
    assert "\n" not in str(error.value)
