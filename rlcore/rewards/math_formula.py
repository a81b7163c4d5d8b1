r"""Whether two formulas have the same value, by math-verify, and what it must not decide.

It takes ``(2, 1)`` for the set of 1 and 2, ``X`` for ``x``, letters behind numbers for units, and
values below its precision for zero, and drops the base of ``1001_2``: these are resolved here
before or after it. Inequalities and ``x \in`` become intervals first, since sympy may try for ever
to solve an inequality that a policy wrote.

Importing this module takes a second or two.
"""

import logging
import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, Float, I, Rational

from rlcore.rewards.math_text import split_outside

# It warns at each call that its alarms are off; they would replace the worker's own.
logging.getLogger("math_verify").setLevel(logging.ERROR)

# As LaTeX only: extracting expressions would read "> 7" and "not 7." as 7.
_READ = LatexExtractionConfig()
_FORMULA = [replace(_READ, normalization_config=replace(_READ.normalization_config, units=False))]
_LETTER = r"(?:[A-Za-z]|\\(?:theta|alpha|beta|phi|lambda)(?![A-Za-z]))"
_INSIDE = r"([^,\[\]()]+),([^,\[\]()]+)"  # of an interval
_SAME_WRITING = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"\\varnothing(?![A-Za-z])|∅|^(?:the )?empty set", r"\\emptyset"),
        (r"(?<=[\d.])[eE]([-+]?\d{1,2})(?![\w.])", r"\\cdot10^{\1}"),
        (r"(?<![\w.])1i(?![A-Za-z])", "i"),
        (r"all real(?: number)?s", r"(-\\infty,\\infty)"),
        (r"\\log_\{?e\}?", r"\\ln"),
        (rf"^\s*{_LETTER}\s*\\in(?![A-Za-z])", ""),
        (r"\\(?:leqslant|leq?)(?![A-Za-z])", "<="),
        (r"\\(?:geqslant|geq?)(?![A-Za-z])", ">="),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\text\{\s*or\s*\}|\\(?:lor|vee)(?![A-Za-z])", " or "),
        (r"\\text\{\s*and\s*\}|\\(?:land|wedge)(?![A-Za-z])", " and "),
        (
            r"^\\\{\s*[A-Za-z](?:\s*\\in\s*\\(?:mathbb\s*\{?)?R\}?)?\s*(?:\\mid|:|\|)"
            r"\s*(.*?)\s*\\\}$",
            r"\1",
        ),
        (rf"(?:^|(?<=[=\s]))({_LETTER})\s*(?:\\neq?(?![A-Za-z])|≠)\s*(-?\d+)$", r"\1<\2 or \1>\2"),
        (r"^\s*\|\s*([A-Za-z])\s*\|\s*(<=?)([^<>=|A-Za-z]+)$", r"-\3\2\1\2\3"),
        (r"^\s*\|\s*([A-Za-z])\s*\|\s*(>=?)([^<>=|A-Za-z]+)$", r"\1\2\3 or -\3\2\1"),
        (rf"\]{_INSIDE}\[", r"(\1,\2)"),
        (rf"\]{_INSIDE}\]", r"(\1,\2]"),
        (rf"\[{_INSIDE}\[", r"[\1,\2)"),
    )
)
_CONSTANT = r"((?:[^A-Za-z<>=\\]|\\[A-Za-z]+|\\[^A-Za-z])+?)"
_BOUNDS = re.compile(
    rf"\s*(?:{_CONSTANT}\s*(<=?|>=?))?\s*{_LETTER}\s*(?:(<=?|>=?)\s*{_CONSTANT})?\s*"
)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_BASE = re.compile(r"\d\s*_\s*\{?\s*(\w+)")
_TOLERANCE = 2e-6  # relative, where one side is a decimal: as far as math-verify rounds
_EXACT = 1e-60


def same_formula(truth: str, answer: str, factor: Fraction = Fraction(1)) -> bool:
    """Return whether ``factor`` times the formula ``answer`` has the value of ``truth``.

    Both are in the writing of ``rlcore.rewards.math_text``, without units; ``answer`` is within
    ``rlcore.rewards.math_limits``.
    """
    truth, answer = (_two_values(_as_intervals(_rewritten(text))) for text in (truth, answer))
    if _other_case(truth, answer) or _BASE.findall(truth) != _BASE.findall(answer):
        return False
    if _unlike(_shape(truth), _shape(answer)):
        return False
    if split_outside(re.sub(r"[\[\]()]|\\[{}]", "", answer), "") is None:
        return False  # the box would end within it
    # The first match is the box: behind a formula that cannot be read, the parser would look for
    # any fraction in the text.
    expected, given = (
        parse(rf"\boxed{{{text}}}", _FORMULA, extraction_mode="first_match", parsing_timeout=0)
        for text in (truth, answer)
    )
    if factor != 1:
        size = Rational(factor.numerator, factor.denominator)
        given = [size * each for each in given if isinstance(each, Expr)]
    if not expected or not given:
        return False
    if verify(expected, given, timeout_seconds=None):
        return not _differ(expected[0], given[0])
    # Two constants with ``i``, a letter to math-verify: the imaginary unit.
    letters = {
        letter for each in (expected, given) for letter in getattr(each[0], "free_symbols", ())
    }
    if {str(letter) for letter in letters} != {"i"}:
        return False
    return not _differ(expected[0], given[0], dict.fromkeys(letters, I), unless=True)


def _rewritten(text: str) -> str:
    for pattern, instead in _SAME_WRITING:
        text = pattern.sub(instead, text)
    return text.strip()


def _other_case(truth: str, answer: str) -> bool:
    """Return whether the letters differ in their case only, which the parser drops."""
    said = [set(re.findall("[A-Za-z]", _COMMAND.sub("", text))) for text in (truth, answer)]
    folded = [{letter.lower() for letter in letters} for letters in said]
    return said[0] != said[1] and folded[0] == folded[1]


def _as_intervals(text: str) -> str:
    r"""Return inequalities of one variable against constants as intervals, else ``text``.

    >>> _as_intervals(r"1 <= x < 2 or x > 5")
    '[1,2)\\cup(5,\\infty)'
    """
    parts = [
        [_interval(each) for each in re.split(r"\band\b", part)]
        for part in re.split(r"\bor\b", text)
    ]
    if any(None in part for part in parts):
        return text
    return r"\cup".join(_common([each for each in part if each]) for part in parts)


def _interval(text: str) -> tuple[str, str] | None:
    """Return the halves of the interval that an inequality is: ``[1`` and ``2)`` of 1 <= x < 2."""
    found = _BOUNDS.fullmatch(text)
    if found is None or not (found[2] or found[3]):
        return None
    (low, left), (right, high) = found.group(1, 2), found.group(3, 4)
    if (left or right)[0] != (right or left)[0]:
        return None
    if (left or right)[0] == ">":  # read it from the right
        low, left, right, high = high, right, left, low
    begin = f"{'[' if '=' in left else '('}{low.strip()}" if low else r"(-\infty"
    end = f"{high.strip()}{']' if '=' in right else ')'}" if high else r"\infty)"
    return begin, end


def _common(intervals: list[tuple[str, str]]) -> str:
    """Return the intersection of intervals; of x > 1 and x < 2, (1, 2)."""
    begins = [begin for begin, _ in intervals if begin != r"(-\infty"]
    ends = [end for _, end in intervals if end != r"\infty)"]
    if len(intervals) == 2 and len(begins) == len(ends) == 1:
        return f"{begins[0]},{ends[0]}"
    return r"\cap".join(f"{begin},{end}" for begin, end in intervals)


def _two_values(text: str) -> str:
    """Return a formula with one sign of plus or minus as the set of its two values."""
    parts = re.split(r"\\pm(?![A-Za-z])|±", text)
    if len(parts) != 2 or _commas(text) != 0 or "=" in text:
        return text
    return rf"\{{{'+'.join(parts)},{'-'.join(parts)}\}}"


def _shape(text: str) -> str:
    """Return how a text of several values holds them: "set", "set of sets", "list", "vector" of
    more than two values, or its two brackets, as "(]"; "" for one value."""
    if text.startswith(r"\{") and text.endswith(r"\}"):
        inner = text[2:-2]
        nested = "set of sets" if r"\{" in inner else "set"
        return nested if _commas(inner) is not None else ""
    brackets, commas = text[:1] + text[-1:], _commas(text[1:-1])
    if _commas(text) or brackets[:1] not in ("(", "[") or not commas:
        return "list" if _commas(text) else ""
    return "vector" if commas > 1 and brackets in ("()", "[]") else brackets


def _unlike(truth: str, answer: str) -> bool:
    """Return whether the shapes cannot be equal: a set, a tuple or open interval, a closed one; a
    list may be a set, and a tuple without its brackets."""
    if truth == answer or not truth or not answer:
        return False
    like_list = {"set"} if truth == "list" else {"set", "()", "vector"}
    return "list" not in (truth, answer) or not {truth, answer} & like_list


def _commas(text: str) -> int | None:
    """Return the commas outside all brackets; None where brackets do not match."""
    parts = split_outside(text, ",")
    return None if parts is None else len(parts) - 1


def _differ(
    truth: Any, given: Any, point: dict[Any, Any] | None = None, *, unless: bool = False
) -> bool:
    """Return whether two values that math-verify took for equal differ, at one ``point`` where
    there are letters: it takes a difference below its precision for none. ``unless``: the answer
    where they are no numbers."""
    if not (isinstance(truth, Expr) and isinstance(given, Expr)):
        return unless
    letters = sorted(truth.free_symbols | given.free_symbols, key=str)
    point = point or {letter: Rational(2 * i + 3, 7) for i, letter in enumerate(letters)}
    try:
        truth, given = truth.subs(point).doit(), given.subs(point).doit()
        size = abs(complex(truth.evalf(20)))
        gap = abs((truth - given).evalf(15, maxn=150))
        most = _TOLERANCE if truth.has(Float) or given.has(Float) else _EXACT
        return bool(gap > most * size) if size else bool(gap > _EXACT)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError, AttributeError):
        return unless  # no number: a matrix, an undefined point
