"""Reward for programs: the share of its tests that a response's program passes, in a sandbox.

The program is the last Python block of the response. The tests are JSON in the row's ground truth:
``{"inputs": [...], "outputs": [...]}`` of texts for stdin and stdout, or with ``"fn_name"`` of
argument lists and results (the form of APPS, TACO and verl's prime_code, whose rules of comparison
these are; verl/utils/reward_score/prime_code/testing_util.py). Expected outputs never enter the
sandbox: a program that forges what the sandbox says can only forge a right answer by having it.
"""

import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from rlcore.rewards.types import Reward, RewardRow, Scorer
from rlcore.sandbox.probe import find_sandbox
from rlcore.sandbox.sandbox import Sandbox
from rlcore.sandbox.types import MIB, Limits, Ran, Status
from schemas.errors import UserError

# What scoring a row takes besides its programs: the first row also looks for a sandbox.
_MARGIN_S = 1.0
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,}) *([^`\s]*)[^`]*$")
_PYTHON = {"python", "py", "python3"}
_RELATIVE, _ABSOLUTE = 1e-5, 1e-8  # as numpy.allclose, where the expected output is no integer
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NUMBER_CHARACTERS = 400
_CALLER = """
names = {**globals(), "__name__": "program", "__file__": "program.py"}
import json, os, sys
answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
given = json.load(sys.stdin)
exec(compile(given["program"], "program.py", "exec"), names)
owner = names.get("Solution")
name = given["fn_name"]
function = getattr(owner(), name) if hasattr(owner, name) else names[name]
answer.write(json.dumps(function(*given["arguments"])))
answer.close()
"""
# What programs in the style of LeetCode take for imported, as verl does for both kinds of test:
# modules, and the names of the first, of which the later win but do not hide a builtin.
_STARRED = ("typing", "bisect", "collections", "functools", "heapq", "itertools", "math")
_MODULES = {*_STARRED, "copy", "random", "re", "string"}
_NAMES = {
    name: module.__name__
    for module in map(import_module, _STARRED)
    for name in getattr(module, "__all__", dir(module))
    if not name.startswith("_") and name not in {*_MODULES, "pow"}
}


@dataclass(frozen=True, slots=True)
class Cases:
    """The tests of one row; ``function`` is None where programs read stdin."""

    function: str | None
    inputs: list[Any]
    outputs: list[Any]


def scorer(
    partial: bool = False,
    timeout_s: float = 4.0,
    memory_mib: int = 1024,
    *,
    sandbox: str = "auto",
    row_timeout_s: float = 10.0,
) -> Scorer:
    """Return the reward function: 1 if all tests pass, else 0 or, if ``partial``, their share.

    ``timeout_s``: wall clock of one test, in seconds; of all tests of a row it is
    ``row_timeout_s`` less a second, and tests not reached by then have failed. ``memory_mib``:
    address space of the program. ``sandbox``: a level, or "auto". The sandbox is looked for at the
    first row. Raises UserError for options that cannot work.
    """
    if not isinstance(partial, bool):
        raise UserError(f"option partial = {partial!r} of reward 'code' must be true or false")
    if not 0 < timeout_s <= row_timeout_s - _MARGIN_S:
        raise UserError(
            f"option timeout_s = {timeout_s:g} of reward 'code' must be above 0 and at least"
            f" {_MARGIN_S:g} s below reward.timeout_s = {row_timeout_s:g}; lower it or raise"
            " reward.timeout_s"
        )
    if memory_mib < 64:
        raise UserError(
            f"option memory_mib = {memory_mib} of reward 'code' leaves a Python program no room;"
            " use at least 64"
        )
    limits = Limits(timeout_s, memory_mib * MIB)

    def score(row: RewardRow) -> Reward:
        tests = cases_of(row.ground_truth)
        program = last_program(row.response)
        if program is None:
            return Reward.no_answer(row)
        deadline = time.monotonic() + row_timeout_s - _MARGIN_S
        runs_in = find_sandbox(sandbox)
        passed, why = _passed(runs_in, program, tests, limits, deadline, to_the_end=partial)
        right = passed == len(tests.inputs)
        share = passed / len(tests.inputs) if partial else float(right)
        return Reward.of(row, share, right, detail=why)

    return score


def check_truth(ground_truth: str, **options: object) -> None:
    """Raise UserError for a ground truth that holds no tests; no option changes what does."""
    cases_of(ground_truth)


def last_program(response: str) -> str | None:
    """Return the last complete block of ``response`` fenced as Python (CommonMark 4.5), or None."""
    found, opened = None, None
    lines: list[str] = []
    for line in response.split("\n"):
        fence = _FENCE.match(line.rstrip("\r")) if line.lstrip(" ")[:3] in ("```", "~~~") else None
        if opened is None:
            if fence:
                opened, lines = fence, []
        elif fence and fence[1].startswith(opened[1]) and not line.strip(" \r\t`~"):
            if opened[2].lower() in _PYTHON:
                found = "\n".join(lines)
            opened = None
        else:
            lines.append(line)
    return found


def cases_of(ground_truth: str | None) -> Cases:
    """Return the tests in a row's ground truth. Raises UserError when they cannot be used."""
    try:
        data = json.loads(ground_truth or "")
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not {"inputs", "outputs"} <= data.keys():
        raise UserError(
            "the row's ground_truth is not JSON with 'inputs' and 'outputs'; write its tests as"
            ' {"inputs": ["1 2\\n"], "outputs": ["3\\n"]}'
        )
    function, inputs, outputs = data.get("fn_name"), data["inputs"], data["outputs"]
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs:
        raise UserError("the row's ground_truth: 'inputs' must be a list with at least one test")
    if len(inputs) != len(outputs):
        raise UserError(
            f"the row's ground_truth has {len(inputs)} inputs and {len(outputs)} outputs; each"
            " test needs one of each"
        )
    if function is None:
        return Cases(None, [_text(one) for one in inputs], [_text(one) for one in outputs])
    if all(isinstance(one, str) for one in (*inputs, *outputs)):
        with suppress(ValueError, RecursionError):  # verl's prime_code: JSON, an argument a line
            inputs, outputs = (
                [[json.loads(line) for line in one.split("\n")] for one in inputs],
                [json.loads(one) for one in outputs],
            )
    if not isinstance(function, str) or not all(isinstance(one, list) for one in inputs):
        raise UserError(
            "the row's ground_truth: 'fn_name' must be a name, and each of 'inputs' the list of"
            " its arguments"
        )
    if all(isinstance(one, list) and len(one) == 1 for one in outputs):
        return Cases(function, inputs, [_Either(one) for one in outputs])
    return Cases(function, inputs, outputs)


class _Either(list[Any]):
    """An expected result that may be meant as itself or as the one element it holds.

    Rows of APPS wrap every result in a list.
    """


def same_result(said: Any, expected: Any) -> bool:
    """Return whether two JSON values are equal; integers and floats by value, within tolerance
    where ``expected`` is a float."""
    if isinstance(expected, _Either):
        return same_result(said, list(expected)) or same_result(said, expected[0])
    if isinstance(expected, bool) or isinstance(said, bool):
        return said is expected
    if isinstance(expected, int | float) and isinstance(said, int | float):
        return said == expected if isinstance(expected, int) else _near(said, expected)
    if isinstance(expected, list) and isinstance(said, list):
        return len(said) == len(expected) and all(map(same_result, said, expected))
    if isinstance(expected, dict) and isinstance(said, dict):
        same_keys = said.keys() == expected.keys()
        return same_keys and all(same_result(said[key], expected[key]) for key in expected)
    return type(said) is type(expected) and said == expected


def same_output(said: str, expected: str) -> bool:
    """Return whether two texts are equal, line by line and word by word.

    White space at line ends and empty lines at the end do not count. Where the expected word is a
    number with a decimal point or an exponent, the value counts.
    """
    said, expected = said.rstrip(), expected.rstrip()
    if said == expected:
        return True
    if said.count("\n") != expected.count("\n"):  # before millions of lines take memory
        return False
    for line, other in zip(said.split("\n"), expected.split("\n"), strict=True):
        if line.rstrip() == other.rstrip():
            continue
        words, others = line.split(), other.split()
        if len(words) != len(others) or not all(map(_same_word, words, others)):
            return False
    return True


def _passed(
    sandbox: Sandbox,
    program: str,
    tests: Cases,
    limits: Limits,
    deadline: float,
    *,
    to_the_end: bool,
) -> tuple[int, str]:
    """Return how many tests pass until ``deadline`` (monotonic), and why the first that fails does.

    Those after a failed one are run only ``to_the_end``.
    """
    passed, why = 0, ""
    for index in range(len(tests.inputs)):
        left = replace(limits, seconds=min(limits.seconds, deadline - time.monotonic()))
        if left.seconds <= 0:
            failed = "not run, since the tests before it took the whole time of a row"
            to_the_end = False
        else:
            failed = _failure(sandbox, program, tests, index, left)
        if not failed:
            passed += 1
            continue
        why = why or f"test {index + 1} of {len(tests.inputs)}: {failed}"
        if not to_the_end:
            break
    return passed, why


def _failure(sandbox: Sandbox, program: str, tests: Cases, index: int, limits: Limits) -> str:
    """Return why ``program`` fails a test, "" when it passes."""
    given, expected, imports = tests.inputs[index], tests.outputs[index], _imports(program)
    if tests.function is None:
        # By itself, as a line "from __future__" must be the first.
        run = f"{imports}\nexec(compile({program!r}, 'program.py', 'exec'))"
        ran = sandbox.run(run, stdin=given, limits=limits)
        right = ran.succeeded and same_output(ran.stdout.decode(errors="replace"), expected)
    else:
        call = {"program": program, "fn_name": tests.function, "arguments": given}
        ran = sandbox.run(imports + _CALLER, stdin=json.dumps(call), limits=limits)
        right = ran.succeeded and _same_json(ran.stdout, expected)
    if right:
        return ""
    return "wrong output" if ran.succeeded else _ending(ran, limits)


def _imports(program: str) -> str:
    """Return the imports of what ``program`` names of the standard library, since all of them would
    double the time of a test; and a limit of calls for a path of 2e5 nodes, which those without an
    end reach in seconds."""
    words = set(re.findall(r"\w+", program))
    lines = [f"import {module}" for module in sorted(words & _MODULES)]
    lines += [f"from {_NAMES[name]} import {name}" for name in sorted(words & _NAMES.keys())]
    return "\n".join(["import sys", "sys.setrecursionlimit(3 * 10**5)", *lines])


def _same_json(said: bytes, expected: Any) -> bool:
    try:
        return same_result(json.loads(said), expected)
    except (ValueError, RecursionError):
        return False


def _ending(ran: Ran, limits: Limits) -> str:
    """Return how a program that failed has ended."""
    ended = {
        Status.TIMEOUT: f"no end within {limits.seconds:.3g} s",
        Status.MEMORY: f"more than {limits.memory_bytes // MIB} MiB of memory",
        Status.OUTPUT: f"more than {limits.output_bytes // MIB} MiB of output",
        Status.FILES: "more or larger files than the sandbox holds",
        Status.THREADS: f"more than {limits.threads} threads",
        Status.KILLED: f"killed by signal {ran.signal}",
    }
    if ran.status in ended:
        return ended[ran.status]
    last = ran.stderr.decode(errors="replace").strip().rsplit("\n", 1)[-1][:200]
    return f"exit code {ran.exit_code}{': ' if last else ''}{last}"


def _text(value: Any) -> str:
    """Return a text of stdin or stdout, in APPS also a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if isinstance(value, str):
        return value
    raise UserError(
        f"the row's ground_truth holds {str(value)[:60]!r} as a text of stdin or stdout; write a"
        " text or a list of lines, or name a function in 'fn_name'"
    )


def _same_word(said: str, expected: str) -> bool:
    if said == expected:
        return True
    if max(len(said), len(expected)) > _NUMBER_CHARACTERS or expected.lstrip("+-").isdigit():
        return False
    numbers: Sequence[str] = (said, expected)
    if not all(_NUMBER.fullmatch(number) for number in numbers):
        return False
    return _near(float(said), float(expected))


def _near(said: float, expected: float) -> bool:
    if said == expected or (said != said and expected != expected):
        return True
    try:
        return abs(said - expected) <= _ABSOLUTE + _RELATIVE * abs(expected) < float("inf")
    except OverflowError:  # an integer beyond every float
        return False
