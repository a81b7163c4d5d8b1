"""Commands that change nothing, answered without running them: tests, and what tells something."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from importlib.util import find_spec

from rlcore.from_verl.shell.value import Text

_IMPORT = re.compile(r"\s*import (\w+)\s*")
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


def holds(words: Sequence[Text], *, conditional: bool) -> bool | None:
    """Return whether the test of ``words`` holds; None: only running it could tell.

    ``conditional``: of ``[[``, which compares with a pattern and knows ``&&`` and ``||``.
    """
    for joint, decides in (("||", True), ("&&", False)) if conditional else ():
        if joint in (values := [word.value for word in words]):
            at = values.index(joint)
            sides = [holds(part, conditional=True) for part in (words[:at], words[at + 1 :])]
            return decides if decides in sides else None if None in sides else not decides
    if len(words) > 1 and words[0].value == "!":
        inner = holds(words[1:], conditional=conditional)
        return None if inner is None else not inner
    if any(word.unknown for word in words):
        return None
    match [word.value for word in words]:
        case []:
            return False
        case [text] | ["-n", text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case [left, "=" | "==" | "!=" as sign, right]:
            equal = fnmatchcase(left, right) if conditional else left == right
            return equal is (sign != "!=")
        case [left, comparison, right] if comparison in _NUMBERS:
            try:
                return _NUMBERS[comparison](int(left), int(right))
            except ValueError:
                return None
    return None


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and output of a command; ``remark``: what might be answered otherwise elsewhere."""

    status: bool
    output: str | None = None
    remark: str = ""


def answer(words: Sequence[str], now: datetime) -> Answer | None:
    """Return what the command ``words`` would tell here; None: only running it could say."""
    match words:
        case ["true" | ":", *_] | []:
            return Answer(True)
        case ["false", *_]:
            return Answer(False)
        case ["python" | "python3", "-c", code] if match := _IMPORT.fullmatch(code):
            there = _is_installed(match[1])
            said = "is" if there else "is not"
            return Answer(there, remark=f"`{' '.join(words)}`: {match[1]} {said} installed here")
        case ["date", form] if form.startswith("+"):
            return Answer(True, now.strftime(form[1:]))
    return None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # of a module without a spec, such as __main__
        return True
