"""Whether a response ends in the right mathematical answer: by value, never by substring.

The answer of a response is its last ``\\boxed{}``, else what follows the last "####", "A:" or
"answer is/:", else its last line, from the last "is", "are", "get" or "equals" on. Equal texts are
equal answers; otherwise math-verify compares values (1/2 and 0.5, ``x = 2`` and 2, sets of
solutions), each text read as one LaTeX formula: a number somewhere in a sentence is not an answer.
A ground truth of words only is compared as text, where letters are not variables.

An answer beyond the limits of ``rlcore.rewards.math_limits`` is wrong, with the reason: every
response gets a verdict.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any

# Not at first use, where seconds of import would count as the first row's time.
from math_verify import LatexExtractionConfig, parse, verify

from rlcore.rewards.math_limits import too_much
from schemas.errors import UserError

# It warns at each call that its alarms are off; they would replace the worker's own.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_MARKER = re.compile(r"(?:####|answer\s*(?:is\b|:)|^A:)\s*:?", re.IGNORECASE | re.MULTILINE)
_SAID = re.compile(r"\b(?:is|are|gets?|equals?)\b:?", re.IGNORECASE)
_WORDS_ONLY = re.compile(r"[^\d\\=]*[A-Za-z]{2,}[^\d\\=]*")
_DECORATION = re.compile(r"\\text\{([^{}]*)\}|\\[,;! ]|[$\s]")


def math_answer(
    data_source: str, solution: str, ground_truth: str | None, extra_info: Mapping[str, Any]
) -> dict[str, Any]:
    """Return score 1 or 0, ``acc`` and ``answer`` of the response ``solution``.

    A reward function of a recipe: ``rlcore.rewards.math_answer:math_answer``. ``detail`` says why
    an answer was not compared by value. Raises UserError without a ground truth.
    """
    del data_source, extra_info
    if ground_truth is None or not ground_truth.strip():
        raise UserError("the row has no ground_truth")
    answer = final_answer(solution)
    right, why = judge(answer, ground_truth)
    return {"score": float(right), "acc": right, "answer": answer, "detail": why}


def final_answer(response: str) -> str:
    """Return the answer in ``response``; "" when it is empty."""
    boxed = _last_boxed(response)
    if boxed is not None:
        return boxed.strip()
    marked = list(_MARKER.finditer(response))
    tail = response[marked[-1].end() :] if marked else response
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    if not lines:
        return ""
    if marked:
        return lines[0]
    *_, start = 0, *(said.end() for said in _SAID.finditer(lines[-1]))
    return lines[-1][start:].strip() or lines[-1]


def judge(answer: str, ground_truth: str) -> tuple[bool, str]:
    """Return whether the two are the same text or value, and why the values were not compared, if
    so."""
    if not answer:
        return False, "the response holds no answer"
    if _plain(answer) == _plain(ground_truth):
        return True, ""
    if _WORDS_ONLY.fullmatch(ground_truth):
        return False, ""
    bare = answer.strip("*_` \n").rstrip(".,;:")
    if (why := too_much(bare)) is not None:
        return False, f"the answer is not compared by value: {why}"
    return _same_value(bare, ground_truth), ""


def _same_value(answer: str, ground_truth: str) -> bool:
    # As LaTeX only: extracting expressions would read "> 7" and "not 7." as 7.
    truth, given = (
        parse(rf"\boxed{{{text}}}", [LatexExtractionConfig()], parsing_timeout=0)
        for text in (ground_truth, answer)
    )
    return bool(truth) and verify(truth, given, timeout_seconds=None)


def _last_boxed(text: str) -> str | None:
    r"""Return the content of the complete ``\boxed{...}`` that begins last, braces balanced."""
    boxes = {match.end() - 1 for match in re.finditer(r"\\boxed\{", text)}
    if not boxes:
        return None
    open_braces: list[int] = []
    last: tuple[int, int] | None = None
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            open_braces.append(brace.start())
        elif open_braces:
            begin = open_braces.pop()
            if begin in boxes and (last is None or begin > last[0]):
                last = begin, brace.start()
    return None if last is None else text[last[0] + 1 : last[1]]


def _plain(text: str) -> str:
    """Return ``text`` in lower case without spaces, dollar signs, thousands commas and a final full
    stop."""
    bare = _DECORATION.sub(lambda match: match[1] or "", text).casefold().rstrip(".")
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", re.sub(r"\s", "", bare))
