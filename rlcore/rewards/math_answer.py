"""Whether a response ends in the right mathematical answer: by value, never by substring.

The answer of a response is its last ``\\boxed{}``, else what follows the last "####" or
"answer is/:", else its last line. Equal texts are equal answers; otherwise math-verify compares
values (1/2 and 0.5, ``x = 2`` and 2, sets of solutions). A ground truth of words alone is compared
as text: letters are no variables there.
"""

import re
from collections.abc import Mapping
from typing import Any

from schemas.errors import UserError

_MARKER = re.compile(r"(?:####|answer\s*(?:is|:))\s*:?", re.IGNORECASE)
_WORDS_ONLY = re.compile(r"[^\d\\=]*[A-Za-z]{2,}[^\d\\=]*")
_DECORATION = re.compile(r"\\text\{([^{}]*)\}|\\[,;! ]|[$\s]")


def math_answer(
    data_source: str, solution: str, ground_truth: str | None, extra_info: Mapping[str, Any]
) -> dict[str, Any]:
    """Return score 1 or 0, ``acc`` and ``answer`` of the response ``solution``.

    A reward function of a recipe: ``rlcore.rewards.math_answer:math_answer``. Parsing is not timed
    here: the worker kills a row that takes too long. Raises UserError without a ground truth.
    """
    del data_source, extra_info
    if ground_truth is None or not ground_truth.strip():
        raise UserError("the row has no ground_truth")
    answer = final_answer(solution)
    right = is_same_answer(answer, ground_truth)
    return {"score": float(right), "acc": right, "answer": answer}


def final_answer(response: str) -> str:
    """Return the part of ``response`` that is its answer; "" when it is empty."""
    boxed = _last_boxed(response)
    if boxed is not None:
        return boxed.strip()
    marked = list(_MARKER.finditer(response))
    tail = response[marked[-1].end() :] if marked else response
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[0] if marked else lines[-1]


def is_same_answer(answer: str, ground_truth: str) -> bool:
    """Return whether the two are the same text or the same value."""
    if not answer:
        return False
    if _plain(answer) == _plain(ground_truth):
        return True
    if _WORDS_ONLY.fullmatch(ground_truth):
        return False
    return _same_value(answer, ground_truth)


def _same_value(answer: str, ground_truth: str) -> bool:
    import logging

    from math_verify import parse, verify

    # It warns at each call that its alarms are off; they would undo the worker's own.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    truth = parse(rf"\boxed{{{ground_truth}}}", parsing_timeout=0)
    for text in (rf"\boxed{{{answer}}}", answer):
        if truth and verify(truth, parse(text, parsing_timeout=0), timeout_seconds=None):
            return True
    return False


def _last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete ``\boxed{...}``, braces balanced."""
    start = text.rfind(r"\boxed{")
    while start >= 0:
        depth, begin = 1, start + len(r"\boxed{")
        for place in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[begin:place]
        start = text.rfind(r"\boxed{", 0, start)
    return None


def _plain(text: str) -> str:
    """Return ``text`` without spaces, dollar signs, thousands commas and a last stop, one case."""
    bare = _DECORATION.sub(lambda match: match[1] or "", text).casefold().rstrip(".")
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", re.sub(r"\s", "", bare))
