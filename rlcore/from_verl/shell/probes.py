"""Commands that only tell something, answered without running them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec

_IMPORT = re.compile(r"\s*import (\w+)\s*")


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and output of a command; ``remark``: what might be answered otherwise elsewhere."""

    status: bool
    output: str | None = None
    remark: str = ""


def answer(words: Sequence[str]) -> Answer | None:
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
            return Answer(True, datetime.now().strftime(form[1:]))
    return None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # of a module without a spec, such as __main__
        return True
