"""Settings are read out of a command, a block of overrides or YAML, or the reader is told why."""

import pytest

from rlcore.verl.text import read_settings
from schemas.errors import UserError

MAIN = "python3 -m verl.trainer.main_ppo"


def values(text: str) -> dict:
    return read_settings(text).values


def test_a_command_is_whole_and_a_block_of_settings_an_excerpt() -> None:
    """What an excerpt does not show has the values of verl's example, not its defaults."""
    whole, part = read_settings(f"{MAIN} a.b=1"), read_settings("a.b=1\nc.d=x")
    assert (whole.values, whole.excerpt) == ({"a.b": 1}, False)
    assert (part.values, part.excerpt) == ({"a.b": 1, "c.d": "x"}, True)
    for more in ("...", "…"):
        assert read_settings(f"{MAIN} a.b=1 {more}").excerpt


def test_a_script_without_arguments_is_whole() -> None:
    """Every script of verl's ends in "$@"; as an excerpt it would get another run's sizes."""
    for more in ('"$@"', "$@", "${@}"):
        assert read_settings(f"{MAIN} a.b=1 {more}") == read_settings(f"{MAIN} a.b=1")


def test_a_later_setting_replaces_an_earlier_one_and_a_deleted_one_is_gone() -> None:
    found = read_settings(f"{MAIN} a=1 b=2 a=3 ~b +c=4 ++d=5 ~e")
    assert (found.values, found.deleted) == ({"a": 3, "c": 4, "d": 5}, ("b", "e"))


def test_what_follows_the_command_is_no_setting() -> None:
    for tail in ("2>&1 | tee log", "> log", "&> log &", "&& echo y=2", "; z=3", "&"):
        assert values(f"{MAIN} a=1 {tail}") == {"a": 1}, tail
    assert values(f"{MAIN} a=1 > log x=1") == {"a": 1, "x": 1}, "as the shell reads it"


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
        (f"{MAIN} lonely", "'lonely' is not of the form key=value"),
        (f"{MAIN} 'a\nb=3'", "'a b=3' is not of the form key=value"),
        (f"{MAIN} ={'x' * 99}", f"'={'x' * 79}...' is not of the form key=value"),
        (f"{MAIN} =3", "'=3' is not of the form key=value"),
        ("a: [1", "the config is not valid YAML"),
        ("set -x\necho hello\n", "the script starts no trainer of verl; give the script whose"),
        (
            "set -e\necho moved to y\nexit 1\n",
            "no trainer of verl: line 3 exits after 'moved to y'",
        ),
        ("+ set -x\n+ python3 x.py", "the output of bash -x holds no command of verl's trainer"),
        (f"if [ -f x ]; then A=(a=1); fi\n{MAIN} $A", "line 1: whether the condition of 'if' hol"),
        (f"{MAIN} a=1 {'$(' * 2000 + ')' * 2000}", "not of the form|nested too deeply"),
        (f"{MAIN} {'$(' * 9}a=1", r"\) is missing after line 1; close the quotes"),
        (f"{MAIN} $NOBODY_SET_THIS=1", r"shell variable \$NOBODY_SET_THIS has no value"),
    ],
)
def test_text_that_cannot_be_read_is_told_in_one_line(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        read_settings(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("$NOBODY_SET_THIS", "shell variable $NOBODY_SET_THIS has no value in the text"),
        ("x/$NOBODY_SET_THIS/y", "shell variable $NOBODY_SET_THIS has no value in the text"),
        ("$((2**8))", "$((2**8)) is not arithmetic that is read here; write the number"),
        ("$((2 +))", "$((2 +)) is not arithmetic that is read here; write the number"),
        ("$((1 / 0))", "$((1 / 0)) is not arithmetic that is read here; write the number"),
        ("$(nproc)", "$(nproc) (line 1) is known only where the script runs"),
    ],
)
def test_a_value_that_the_text_does_not_tell_is_kept_with_the_reason(value: str, why: str) -> None:
    """Most settings are not needed; only one that is must end the translation."""
    found = read_settings(f"{MAIN} a={value} b=1")
    assert found.unread["a"].startswith(why)
    assert found.values["b"] == 1
    assert "a" not in read_settings(f"{MAIN} a={value} a=2").unread


SCRIPT = """#!/usr/bin/env bash
set -xeuo pipefail
SIZE=${SIZE:-64}
DATA=(
    data.train_batch_size=${SIZE}  # prompts
    data.train_files="['$ROOT/a b.parquet']"
)
EXTRA=()
if [ "${SIZE}" -gt 32 ]; then
    EXTRA+=(trainer.nnodes=2)
fi
LAUNCH=(uv run python3)
"${LAUNCH[@]}" -m verl.trainer.main_ppo \\
    "${DATA[@]}" \\
    "${EXTRA[@]}" \\
    "$@" 2>&1 | tee log
"""
TRACE = """+ SIZE=64
+ DATA=(data.train_batch_size=${SIZE} data.train_files="['$ROOT/a b.parquet']")
+ '[' 64 -gt 32 ']'
+ EXTRA+=(trainer.nnodes=2)
+ uv run python3 -m verl.trainer.main_ppo data.train_batch_size=64 \
'data.train_files=['\\''/r/a b.parquet'\\'']' trainer.nnodes=2
[2026-01-01] it's the trainer's own log
+ tee log
"""


def test_a_script_of_arrays_and_its_trace_set_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOT", "/r")
    monkeypatch.delenv("SIZE", raising=False)
    asked = {
        "data.train_batch_size": 64,
        "data.train_files": ["/r/a b.parquet"],
        "trainer.nnodes": 2,
    }
    for text in (SCRIPT, TRACE.replace(" \\\n'", " '")):
        found = read_settings(text)
        assert (found.values, found.excerpt, found.unread) == (asked, False, {})
    monkeypatch.setenv("SIZE", "8")
    assert values(SCRIPT)["data.train_batch_size"] == 8, "as bash would have it"


def test_hydras_resolved_config_is_whole_and_lists_defaults() -> None:
    sections = ("actor_rollout_ref", "algorithm", "data", "trainer")
    config = "\n".join(f"{section}: {{x: 1}}" for section in sections)
    found = read_settings(config)
    assert (found.excerpt, found.defaults) == (False, True)
    assert set(found.values) == {f"{section}.x" for section in sections}
