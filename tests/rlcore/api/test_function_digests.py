"""Two functions have equal parts when they do the same, and only then."""

import functools
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.api.function_digests import Incomparable, parts_of

# Run as a program, so that nothing in it can be imported: as a user's script, or a notebook.
PROGRAM = """
import dataclasses, functools, re
import numpy as np
from rlcore.api.function_digests import parts_of

SCALE = {scale}
NAMES = {{"b", "a", "c"}}

def helper(text):
    return len(text) * SCALE

@dataclasses.dataclass
class Judge:
    weight: float = {weight}
    def __call__(self, prompt, response):
        return helper(response) * self.weight
    def verdict(self, prompt, response, limit={limit}):
        return len(response) > limit

def maker(table):
    return lambda prompt, response: table.get(response, helper(response)){code}

{comment}
made = maker({{"x": np.arange({width}), "y": re.compile("y")}})
for thing in (made, Judge(), Judge().verdict, functools.partial(made, "p"), helper,
              lambda prompt, response: response in NAMES,
              lambda prompt, response: response in {{"b", "a", "c"}}):
    print(sorted(parts_of(thing).items()))
"""
THINGS = 7  # of which it prints the parts
AS_IT_IS = {"scale": 2, "weight": 1.0, "limit": 3, "code": "", "comment": "", "width": 3}


def digests(folder: Path, *changes: dict[str, Any]) -> list[list[str]]:
    """What ``parts_of`` says of the functions of the program with each of ``changes``, in one
    process per call."""
    scripts = [str(folder / str(number) / "train.py") for number in range(len(changes))]
    for script, change in zip(scripts, changes, strict=True):
        Path(script).parent.mkdir(exist_ok=True)
        Path(script).write_text(PROGRAM.format(**{**AS_IT_IS, **change}))
    driver = "import runpy, sys; [runpy.run_path(p, run_name='__main__') for p in sys.argv[1:]]"
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "random"}
    command = [sys.executable, "-c", driver, *scripts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == THINGS * len(changes)
    return [lines[first : first + THINGS] for first in range(0, len(lines), THINGS)]


def test_another_process_finds_what_changed_and_nothing_else(tmp_path: Path) -> None:
    """Order: a lambda with a closure, an object, its method, a partial, a function, two lambdas."""
    (before,) = digests(tmp_path, {})
    edits = {"comment": "# a remark\n"}, {"scale": 3}, {"width": 4}, {"limit": 4}
    changed = [
        [i for i, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
        for now in digests(tmp_path, *edits)
    ]
    assert changed == [[], [0, 1, 2, 3, 4], [0, 3], [1, 2]]


def made(table: dict[str, Any], code: str = "len(response) + 1", k: int = 1) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"table": table}
    exec(f"def f(prompt, response, k={k}): return {code}, table", namespace)
    return namespace["f"]


def test_code_globals_and_defaults_count() -> None:
    assert parts_of(made({})) == parts_of(made({}))
    others = made({"a": 1}), made({}, "len(response) + 2"), made({}, k=2)
    assert parts_of(made({})) not in [parts_of(other) for other in others]


class Mark(Enum):
    GOOD = 1


@dataclass
class Judge:
    weight: float
    client: Any = None

    def __call__(self, prompt: str, response: str) -> float:
        return self.weight


def test_an_importable_function_is_its_file(tmp_path: Path, monkeypatch: Any) -> None:
    """Its module may hold what no digest can be taken of, and import what is beside it."""
    (tmp_path / "beside_rewards.py").write_text("LIMIT = 3\n")
    file = tmp_path / "my_rewards.py"
    file.write_text(
        "import threading, beside_rewards\nLOCK = threading.Lock()\n"
        "def f(prompt, response):\n    with LOCK:\n        return beside_rewards.LIMIT\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from my_rewards import f  # pyright: ignore[reportMissingImports]

    calls = made({"f": f})
    first = parts_of(f), parts_of(calls)
    assert [list(parts) for parts in first] == [["source"], ["code"]]
    (tmp_path / "beside_rewards.py").write_text("LIMIT = 4\n")
    assert parts_of(f) != first[0]
    assert parts_of(calls) != first[1]


def test_objects_are_their_class_and_attributes() -> None:
    assert parts_of(Judge(1.0)) == parts_of(Judge(1.0))
    assert parts_of(Judge(1.0)) != parts_of(Judge(2.0))
    assert parts_of(functools.partial(Judge(1.0), "p")) != parts_of(functools.partial(Judge(1.0)))
    for one, other in ((np.ones(2), np.zeros(2)), (Mark.GOOD, 1), (re.compile("a"), "a"), ([1], 1)):
        assert parts_of(Judge(1.0, one)) != parts_of(Judge(1.0, other))


def test_what_refers_to_itself_ends() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert parts_of(Judge(1.0, loop)) == parts_of(Judge(1.0, loop))
    assert parts_of(len) != parts_of(max)


@pytest.mark.parametrize(
    "value", [(n for n in ()), socket.socket()], ids=lambda value: type(value).__name__
)
def test_state_that_is_not_pythons_own_is_refused(value: Any) -> None:
    with pytest.raises(Incomparable, match=f"cannot pickle '{type(value).__name__}' object"):
        parts_of(Judge(1.0, [value]))


def test_a_models_weights_count() -> None:
    """A tensor that was ignored would let a changed reward model pass as the same reward."""
    assert parts_of(Judge(1.0, torch.ones(2))) == parts_of(Judge(1.0, torch.ones(2)))
    assert parts_of(Judge(1.0, torch.ones(2))) != parts_of(Judge(1.0, torch.zeros(2)))
