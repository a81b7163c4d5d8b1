"""A script is followed to the command as bash would reach it; where that is open, it is refused."""

from pathlib import Path

import pytest

from rlcore.verl.shell.parser import parse
from rlcore.verl.shell.script import MOST, Reading, read_script
from schemas.errors import UserError


def reading(text: str, **environment: str) -> Reading:
    return read_script(parse(text), lambda words: words[:1] == ["train"], environment)


def trained(text: str, **environment: str) -> list[str]:
    """Return the arguments of the command ``train``."""
    command = reading(text, **environment).command
    assert command is not None
    return [word.value for word in command[1:]]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("x=1; export y=2 z; readonly v=$y; X=9 train $x $y $v", ["1", "2", "2"]),
        ("[ a = a ] && x=1 || x=2; [ a = b ] && y=1 || y=2; train $x $y", ["1", "2"]),
        ("if [ a = b ]; then x=1; elif test 2 -gt 1; then x=2; else x=3; fi; train $x", ["2"]),
        ("if ! [ a = a ]; then x=1; else x=3; fi; train $x", ["3"]),
        ("[[ ab == a* && -n b ]] && x=1; train $x", ["1"]),
        ("D=npu; case $D in gpu) x=1;; n?u|tpu) x=2;; *) exit 1;; esac; train $x", ["2"]),
        ("f() { x=1; return; x=2; }; f; train $x", ["1"]),
        ("x=1; ( x=2 ); { y=3; }; train $x $y", ["1", "3"]),
        ("A=(p 'q r'); [ -z ''] ; A+=(s); train \"${A[@]}\" | tee log", ["p", "q r", "s"]),
        ("x=$(echo a; echo b) y=`echo c`; train $x $y", ["a", "b", "c"]),
        ("D=$(python3 -c 'import no_such' 2>/dev/null && echo npu || echo gpu); train $D", ["gpu"]),
        ("cd x || exit 1; mkdir -p y && echo made; if [ -d z ]; then ls; fi; train a", ["a"]),
        ("for f in a b; do echo $f; done; train a", ["a"]),
        ("unset HOME; train ${HOME:-no}", ["no"]),
        ("train first; train second", ["first"]),
    ],
)
def test_the_command_gets_what_bash_would_pass(text: str, arguments: list[str]) -> None:
    assert trained(text, HOME="/h") == arguments


def test_the_environment_counts_as_in_bash() -> None:
    text = 'x=${N:-4}; if [ "$D" = npu ]; then x=9; fi; train $x'
    assert trained(text) == ["4"]
    assert trained(text, N="5") == ["5"]
    assert trained(text, D="npu") == ["9"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("if [ -d x ]; then y=1; fi; train",
         "line 1: whether the condition of 'if' holds is known only where the script runs"),
        ("if ls; then train; else\n y=1; fi", "line 2 depends on it; give the output of `bash -x`"),
        ("nvidia-smi && x=1; train", "whether the command before it succeeds"),
        ("case $(nproc) in 1) x=1;; esac; train", "which case applies"),
        ("for x in 1 2; do python3 -m m; done", "how often the loop runs"),
        ("while true; do x=1; done; train", "how often the loop runs"),
        ("\neval x=1; train", "line 2: what 'eval' does is not read"),
        ("read x; train", "what 'read' does is not read"),
        ("f() { g; g; }; " + "; ".join(f"g{i}() {{ g{i + 1}; g{i + 1}; }}" for i in range(20))
         + "; g20() { :; }; g0; train", f"takes more than {MOST} steps"),
    ],
)  # fmt: skip
def test_what_only_running_could_tell_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        reading(text)


def test_what_was_met_on_the_way_is_told() -> None:
    found = reading("set -x\nsource env.sh\necho moved\nexit 1\ntrain x")
    assert (found.command, found.ended) == (None, 4)
    assert [[word.value for word in words] for words in found.commands] == [
        ["set", "-x"],
        ["echo", "moved"],
    ]
    (remark,) = found.remarks
    assert remark == "line 2: source env.sh is not followed; what it sets counts as not set"


def test_nothing_is_run(tmp_path: Path) -> None:
    """The script of a stranger is text."""
    mark = tmp_path / "mark"
    text = f"touch {mark}; x=$(touch {mark}; echo a); y=`touch {mark}`; train $x > {mark}"
    command = reading(text).command
    assert command is not None
    assert "is known only where the script runs" in command[1].unknown
    assert not mark.exists()


def test_several_dates_are_one_moment() -> None:
    """A name and a folder that are made of it belong together."""
    first, second = trained("N=$(date +%S%f); f() { M=$(echo $(date +%S%f)); }; f; train $N $M")
    assert first == second
