r"""Whether two formulas have the same value, by math-verify, and what it must not decide.

It takes ``(2, 1)`` for the set of 1 and 2, ``X`` for ``x``, letters behind numbers for units, and
values below its precision for zero, and drops the base of ``1001_2``: these are settled here before
or after it. Inequalities and ``x \in`` become
intervals first, since sympy may try for ever to solve an inequality that a policy wrote.

Importing this module takes a second or two.
"""

import logging
import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, Float, I, Rational

# It warns at each call that its alarms are off; they would replace the worker's own.
logging.getLogger("math_verify").setLevel(logging.ERROR)

# As LaTeX only: extracting expressions would read "> 7" and "not 7." as 7.
_READ = LatexExtractionConfig()
_FORMULA = [replace(_READ, normalization_config=replace(_READ.normalization_config, units=False))]
_SAME_WRITING = (
    (re.compile(r"\\(?:left|right|[bB]ig+[lr]?)(?![A-Za-z])"), ""),
    (re.compile(r"\\varnothing(?![A-Za-z])|∅"), r"\\emptyset"),
    (re.compile(r"(?<=\d)(?:\{,\}|\\[,!])(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\[,;:!]|~"), " "),
    (re.compile(r"(?<=[\d.])[eE]([-+]?\d{1,2})(?![\w.])"), r"\\cdot10^{\1}"),
    (
        re.compile(r"(?:^|(?<=[=\s]))([A-Za-z]|\\theta)\s*(?:\\neq?|≠)\s*(-?\d+)$"),
        r"\1<\2 or \1>\2",
    ),
    (re.compile(r"(?<![\w.])1i(?![A-Za-z])"), "i"),
    (re.compile(r"all real(?: number)?s"), r"(-\\infty,\\infty)"),
    (re.compile(r"^(?:the )?empty set"), r"\\emptyset"),
    (re.compile(r"\\log_\{?e\}?"), r"\\ln"),
    (re.compile(r"^\s*[A-Za-z]\s*\\in(?![A-Za-z])"), ""),
)
_RELATION = re.compile(r"\\(?:leqslant|geqslant|leq?|geq?|lt|gt)(?![A-Za-z])|<=|>=|[<>≤≥]")
_OR = re.compile(r"\\text\s*\{\s*or\s*\}|\bor\b|\\(?:lor|vee)(?![A-Za-z])")
_AND = re.compile(r"\\text\s*\{\s*and\s*\}|\band\b|\\(?:land|wedge)(?![A-Za-z])")
_VARIABLE = re.compile(r"\s*(?:[A-Za-z]|\\(?:theta|alpha|beta|phi|lambda))\s*")
_BUILDER = re.compile(
    r"\\\{\s*[A-Za-z](?:\s*\\in\s*\\(?:mathbb\s*\{?)?R\}?)?\s*(?:\\mid|:|\|)\s*(.*?)\s*\\\}"
)
_ABSOLUTE = re.compile(
    r"^\s*\|\s*([A-Za-z])\s*\|\s*(<=?|>=?|≤|≥|\\(?:leqslant|geqslant|leq?|geq?|lt|gt)(?![A-Za-z]))"
    r"\s*(\d+(?:\.\d+)?|\\frac\{\d+\}\{\d+\})\s*$"
)
_OUTWARD = re.compile(r"([\[\]])([^,\[\]()]+),([^,\[\]()]+)([\[\]])")
_LETTERS = re.compile(r"\\[A-Za-z]+")
_BASE = re.compile(r"\d\s*_\s*\{?\s*(\w+)")
_TOLERANCE = 2e-6  # relative, where one side is a decimal: as far as math-verify rounds
_EXACT = 1e-60


def same_value(truth: str, answer: str, factor: Fraction = Fraction(1)) -> bool:
    """Return whether ``factor`` times the formula ``answer`` has the value of ``truth``.

    Both are LaTeX without units; ``answer`` is within ``rlcore.rewards.math_limits``.
    """
    truth, answer = (_two_values(_as_intervals(_rewritten(text))) for text in (truth, answer))
    if _other_case(truth, answer) or _BASE.findall(truth) != _BASE.findall(answer):
        return False
    if _unlike(_shape(truth), _shape(answer)):
        return False
    if not _balanced(answer):  # the box would end within it
        return False
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
    if not verify(expected, given, timeout_seconds=None):
        return _same_complex(expected[0], given[0])
    return not _differ(expected[0], given[0])


def _rewritten(text: str) -> str:
    for pattern, instead in _SAME_WRITING:
        text = pattern.sub(instead, text)
    return text.strip()


def _other_case(truth: str, answer: str) -> bool:
    """Return whether the letters differ in their case only, which the parser drops."""
    said = [set(re.findall("[A-Za-z]", _LETTERS.sub("", text))) for text in (truth, answer)]
    folded = [{letter.lower() for letter in letters} for letters in said]
    return said[0] != said[1] and folded[0] == folded[1]


def _as_intervals(text: str) -> str:
    r"""Return inequalities of one variable against constants as intervals, else ``text``.

    >>> _as_intervals(r"1 \le x < 2 or x > 5")
    '[1,2)\\cup(5,\\infty)'
    """
    if (builder := _BUILDER.fullmatch(text)) is not None:
        text = builder[1]
    text = _ABSOLUTE.sub(_without_bars, text)
    parts = [[_interval(each) for each in _AND.split(part)] for part in _OR.split(text)]
    if any(None in part for part in parts):
        return _OUTWARD.sub(_turned, text)
    return r"\cup".join(_common([each for each in part if each]) for part in parts)


def _common(intervals: list[str]) -> str:
    """Return the intersection of intervals; of x > 1 and x < 2, (1, 2)."""
    above = [each for each in intervals if each.endswith(r",\infty)")]
    below = [each for each in intervals if each.startswith(r"(-\infty,")]
    if len(intervals) == 2 and len(above) == len(below) == 1:
        return above[0][: -len(r"\infty)")] + below[0][len(r"(-\infty,") :]
    return r"\cap".join(intervals)


def _without_bars(found: re.Match[str]) -> str:
    """Return |x| < 3 as -3 < x < 3, and |x| > 3 as x < -3 or x > 3."""
    name, relation, size = found.groups()
    less = relation.startswith(("<", r"\l", "≤"))
    equal = "=" * ("=" in relation or "e" in relation or relation in "≤≥")
    if less:
        return f"-{size}<{equal}{name}<{equal}{size}"
    return f"{name}<{equal}-{size} or {name}>{equal}{size}"


def _turned(found: re.Match[str]) -> str:
    """Return ]a, b[ as (a, b)."""
    opening = "(" if found[1] == "]" else "["
    closing = ")" if found[4] == "[" else "]"
    return f"{opening}{found[2]},{found[3]}{closing}"


def _two_values(text: str) -> str:
    """Return a formula with one sign of plus or minus as the set of its two values."""
    parts = re.split(r"\\pm(?![A-Za-z])|±", text)
    if len(parts) != 2 or _commas(text) != 0 or "=" in text:
        return text
    return rf"\{{{'+'.join(parts)},{'-'.join(parts)}\}}"


def _interval(text: str) -> str | None:
    sides = _RELATION.split(text)
    signs = [
        (r.startswith(("<", r"\l", "≤")), "=" in r or "e" in r or r in "≤≥")
        for r in _RELATION.findall(text)
    ]
    middle = [i for i, side in enumerate(sides) if _VARIABLE.fullmatch(side)]
    constant = all(
        not re.search("[A-Za-z=]", _LETTERS.sub("", side)) and side.strip()
        for i, side in enumerate(sides)
        if i not in middle
    )
    if len(middle) != 1 or not constant or not 1 <= len(signs) <= 2:
        return None
    if len({less for less, _ in signs}) > 1 or (len(signs) == 2 and middle != [1]):
        return None
    if not signs[0][0]:  # read it from the right
        sides, signs, middle = sides[::-1], signs[::-1], [len(sides) - 1 - middle[0]]
    low, high = sides[: middle[0]], sides[middle[0] + 1 :]
    opening = "[" if low and signs[0][1] else "("
    closing = "]" if high and signs[-1][1] else ")"
    begin = low[0].strip() if low else r"-\infty"
    end = high[0].strip() if high else r"\infty"
    return f"{opening}{begin},{end}{closing}"


def _shape(text: str) -> str:
    """Return how a text of several values holds them: "set", "set of sets", "list", or its two
    brackets and the number of values, as "(]2"; "" for one value."""
    if text.startswith(r"\{") and text.endswith(r"\}"):
        inner = text[2:-2].replace(r"\{", "(").replace(r"\}", ")")
        kind = "set of sets" if r"\{" in text[2:-2] else "set"
        return kind if _commas(inner) is not None else ""
    commas = _commas(text)
    if commas:
        return "list"
    if text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        inside = _commas(text[1:-1])
        return f"{text[0]}{text[-1]}{inside + 1}" if inside else ""
    return ""


def _balanced(text: str) -> bool:
    """Return whether the braces of ``text`` match."""
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def _commas(text: str) -> int | None:
    """Return the commas outside all brackets; None where brackets do not match."""
    depth = commas = 0
    for character in text.replace(r"\{", "(").replace(r"\}", ")"):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return None
        commas += character == "," and depth == 0
    return commas if depth == 0 else None


def _unlike(truth: str, answer: str) -> bool:
    """Return whether the shapes cannot be equal: a set, a tuple or open interval, a closed one."""
    if truth == answer or not truth or not answer:
        return False
    if truth == "list":
        return answer != "set"
    if answer == "list":
        return truth != "set" and not truth.startswith("()")
    both = {truth, answer}
    return bool(both & {"set", "set of sets"}) or (truth[:2] != answer[:2] and not both <= _VECTORS)


_VECTORS = {f"{brackets}{size}" for brackets in ("()", "[]") for size in range(3, 10)}


def _same_complex(truth: Any, given: Any) -> bool:
    """Return whether two constants are equal once ``i``, a letter to math-verify, is the imaginary
    unit."""
    if not (isinstance(truth, Expr) and isinstance(given, Expr)):
        return False
    letters = truth.free_symbols | given.free_symbols
    if {str(letter) for letter in letters} != {"i"}:
        return False
    return not _differ(
        *(value.subs(dict.fromkeys(letters, I)) for value in (truth, given)), unless=True
    )


def _differ(truth: Any, given: Any, *, unless: bool = False) -> bool:
    """Return whether two values that math-verify took for equal differ, at one point where there
    are letters: it takes a difference below its precision for none. ``unless``: the answer where
    they are no numbers."""
    if not (isinstance(truth, Expr) and isinstance(given, Expr)):
        return False
    letters = sorted(truth.free_symbols | given.free_symbols, key=str)
    point: Any = {letter: Rational(2 * i + 3, 7) for i, letter in enumerate(letters)}
    try:
        truth, given = truth.subs(point).doit(), given.subs(point).doit()
        size = abs(complex(truth.evalf(20)))
        gap = abs((truth - given).evalf(15, maxn=150))
        most = _TOLERANCE if truth.has(Float) or given.has(Float) else _EXACT
        return bool(gap > most * size) if size else bool(gap > _EXACT)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError, AttributeError):
        return unless  # no number: a matrix, an undefined point
