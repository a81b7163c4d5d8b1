"""Tests of the shell: ``[ ... ]`` and ``[[ ... ]]``, on values that may not be known."""

import operator
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from rlcore.from_verl.shell.value import Text

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


def holds(words: Sequence[Text], *, conditional: bool) -> bool | None:
    """Return whether the test of ``words`` holds; None: only running it could tell.

    ``conditional``: of ``[[``, which compares with a pattern and knows ``&&`` and ``||``.
    """
    if conditional:
        for joint, decide in (("||", _any), ("&&", _all)):
            parts = _split(words, joint)
            if len(parts) > 1:
                return decide([holds(part, conditional=True) for part in parts])
    if len(words) > 1 and words[0].value == "!":
        inner = holds(words[1:], conditional=conditional)
        return None if inner is None else not inner
    if any(word.unknown for word in words):
        return None
    match [word.value for word in words]:
        case []:
            return False
        case [text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [left, "=" | "==", right]:
            return fnmatchcase(left, right) if conditional else left == right
        case [left, "!=", right]:
            return not (fnmatchcase(left, right) if conditional else left == right)
        case [left, comparison, right] if comparison in _NUMBERS:
            try:
                return _NUMBERS[comparison](int(left), int(right))
            except ValueError:
                return None
    return None


def _split(words: Sequence[Text], joint: str) -> list[list[Text]]:
    parts: list[list[Text]] = [[]]
    for word in words:
        if word.value == joint:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _any(parts: list[bool | None]) -> bool | None:
    return True if True in parts else None if None in parts else False


def _all(parts: list[bool | None]) -> bool | None:
    return False if False in parts else None if None in parts else True
