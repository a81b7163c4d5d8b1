r"""How mathematical solutions mark their answer: the last ``\boxed{}`` of a text, or words."""

import re
from collections import deque
from typing import NamedTuple

MOST = 8  # boxes that one answer may hold
_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|[{}]")
_BARE_BOX = re.compile(
    r"\\(?:boxed|fbox)\s+([^\s{}$\\][^{}$\\]*)\$"
)  # \boxed 7$, in a few MATH solutions
# What is between two boxes of one answer: \boxed{2}$ or $x = \boxed{3}.
_VARIABLE = r"(?:(?P<name>[A-Za-z])\s*=)?"
_JOINED = re.compile(
    r"(?:[\s$*~]|\\[()\[\],;:! \\]|\\q?quad(?![A-Za-z])"
    r"|(?P<by>[,;]|\\text\s*\{\s*(?:or|and)\s*\}|(?<![A-Za-z])(?:or|and)(?![A-Za-z])))*"
    rf"{_VARIABLE}[\s$*]*"
)
_NAMED = re.compile(r"(?<![A-Za-z\\])(?P<name>[A-Za-z])\s*=\Z")
_NAMES = re.compile(r"(?P<name>[A-Za-z])\s*=")
_LONGEST_GAP = 40  # characters
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_THOUGHT = "</think>"
_MARKER = re.compile(r"(?:####|answer\s*(?:is\b|:)|^A:)\s*:?", re.IGNORECASE | re.MULTILINE)
# No line of marks alone, as ** of a bold marker, $$, --- or an opened fence.
_SAYS = re.compile(r"(?!`{3,}[A-Za-z]*\Z).*(?:[A-Za-z0-9]|[^\x00-\x7f])")
_HOPE = re.compile(r"\.\s*I hope it is correct\.?\s*\Z")  # Minerva's prompt, arXiv 2206.14858 D.2
_SAID = re.compile(r"\b(?:is|are|gets?|equals?)\b:?", re.IGNORECASE)


class Box(NamedTuple):
    """Where a box is in its text: its command, and begin and end of its content."""

    start: int
    begin: int
    end: int


def last_boxed(text: str) -> str | None:
    r"""Return the content of the complete ``\boxed{...}`` that begins last; None without one.

    ``\fbox{...}`` counts, and so does ``\boxed 7$``, up to the dollar sign, as in verl
    (verl/utils/reward_score/math_reward.py). Braces are balanced. The time is linear in the length
    of ``text``.

    >>> last_boxed(r"\boxed{1}, no: \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    boxes, _ = _last_boxes(text)
    return _content(text, boxes[-1]) if boxes else None


def is_cut_off(text: str) -> bool:
    r"""Return whether a ``\boxed{`` that is not closed begins after all that are."""
    return _last_boxes(text)[1]


def joined_boxes(text: str) -> list[str]:
    r"""Return the contents of the last boxes that are one answer of several values, else [].

    They are joined by a comma, "or" or "and", and give values of one variable, if they name any.

    >>> joined_boxes(r"$x = \boxed{2}$ or $x = \boxed{-2}$."), joined_boxes(r"\boxed{2}. \boxed{3}")
    (['2', '-2'], [])
    """
    boxes, _ = _last_boxes(text)
    chain, names = boxes[-1:], set[str]()
    for box in reversed(boxes[:-1]):
        gap = text[box.end + 1 : chain[0].start]
        joined = _JOINED.fullmatch(gap) if len(gap) <= _LONGEST_GAP else None
        if joined is None or joined["by"] is None:
            break
        names.add(joined["name"] or "")
        chain.insert(0, box)
    if not 1 < len(chain) <= MOST:
        return []
    before = text[max(0, chain[0].start - _LONGEST_GAP) : chain[0].start].rstrip("$* \n")
    if before.endswith("="):
        named = _NAMED.search(before)
        names.add(named["name"] if named else before)
    contents = [_content(text, box) for box in chain]
    names |= {named["name"] for content in contents if (named := _NAMES.match(content))}
    return contents if len(names - {""}) <= 1 else []


def final_answers(response: str) -> list[str]:
    r"""Return the answer in ``response``: one text, several where boxes make one answer, or none.

    Of a response that ends in ``<answer>...</answer>`` it is within these tags. It is the last
    ``\boxed{}``, else the first line behind the last "####", "A:" or "answer is/:" that is no mark
    alone (**, $$, ---, a fence), else the last line, behind ``</think>``, from the last "is",
    "are", "get" or "equals" on. A last box that is not closed, as where the limit of tokens cut it
    off, leaves no answer.
    """
    whole, response = response, _within_tags(response)
    if is_cut_off(response):
        return []
    if (boxed := last_boxed(response)) is not None:
        return joined_boxes(response) or [boxed] * bool(boxed)
    marked = _end_of_last(_MARKER, response)
    tail = response[marked:] if marked else response.rpartition(_THOUGHT)[2] or response
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    if not lines:
        return []
    if marked:
        return [_HOPE.sub("", next(filter(_SAYS.match, lines), lines[0]))]
    if response is not whole and len(lines) > 1:  # of which none can be said to be the answer
        return ["; ".join(lines)]
    return [lines[-1][_end_of_last(_SAID, lines[-1]) :].strip() or lines[-1]]


def _within_tags(response: str) -> str:
    """Return the content of the tags that end ``response``, the form of DeepSeek-R1's prompts
    (arXiv 2501.12948, table 1); all of it where none do."""
    tags = deque(_TAG.finditer(response), maxlen=2)
    if [tag[1] for tag in tags] != ["", "/"] or response[tags[1].end() :].strip():
        return response
    return response[tags[0].end() : tags[1].start()]


def _end_of_last(pattern: re.Pattern[str], text: str) -> int:
    """Return where the last match ends; 0 without one."""
    last = deque(pattern.finditer(text), maxlen=1)  # a list of them could take gigabytes
    return last[0].end() if last else 0


def _content(text: str, box: Box) -> str:
    return text[box.begin : box.end].strip()


def _last_boxes(text: str) -> tuple[list[Box], bool]:
    """Return the complete boxes that begin last, ``MOST`` + 1 at most, by their begin; and whether
    one that is not closed begins after them."""
    found = [Box(bare.start(), *bare.span(1)) for bare in _BARE_BOX.finditer(text)]
    depth, opened = 0, list[tuple[int, int, int]]()  # depth, start and begin
    for brace in _BRACE.finditer(text):
        if brace[0] != "}":
            depth += 1
            if brace["box"]:
                opened.append((depth, brace.start(), brace.end()))
        elif depth:
            if opened and opened[-1][0] == depth:
                found.append(Box(*opened.pop()[1:], brace.start()))
            depth -= 1
    found = sorted(found)[-MOST - 1 :]
    return found, bool(opened) and (not found or opened[-1][1] > found[-1].start)
