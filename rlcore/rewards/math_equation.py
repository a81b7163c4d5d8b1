r"""Which sides of an equation say the value of an answer: of ``x=5``, ``f(2)=5``, ``a+b=5`` and
``\frac{10}{2}=5`` the last, and of ``2x=5`` none, whose unknown has another value."""

import re

from rlcore.rewards.math_text import GROUP, split_outside

_NO_VALUE = re.compile(r"\\(?:approx|sim(?:eq)?|cong|equiv|propto)(?![A-Za-z])|[≈≡]|^\s*~")
_NOT_EQUAL = re.compile(r"\\neq?(?![A-Za-z])|≠")
_OTHER_RELATION = re.compile(r"[<>:]=|(?<![\d)])!=|==|[<>]")
_IN_BRACKETS = re.compile(r"(?<=[A-Za-z])\([^()]*\)")
_GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|phi|varphi|omega|sigma|rho|tau|psi)"
    r"(?![A-Za-z])"
)
_INDEX = r"(?:_(?:\w|\{[^{}]*\}|\\[a-z]+)|'|\^(?:\{?\\prime\}?|\{-1\}))*"
_CHANGED = r"(?:not|or|and|to|minus|negative|twice|half)\b"
_NOT = rf"(?!{_CHANGED})"
_LETTER = rf"(?:[A-Za-z]|{_GREEK.pattern}){_INDEX}"
# A variable, a segment, an angle, a word, a function of something; sin, log, gcd, ... of something.
_NAME = re.compile(
    rf"(?:\\(?:m?angle|triangle|overline|vec|bar|hat)\s*)?\{{?(?:{_LETTER}|[A-Z]{{2,4}})\}}?"
    r"(?:\([^()=]*\))?"
    rf"|\\text\{{\s*{_NOT}[A-Za-z .]*\}}|{_NOT}[A-Za-z]{{3,}}(?: {_NOT}[A-Za-z]+){{0,3}}"
    r"|(?:\\(?:sin|cos|tan|cot|sec|csc|log|ln|gcd|lcm|max|min|det)(?![A-Za-z])"
    r"|\\operatorname\{\w+\})[^=]*"
)
_MOST_SIDES = 6


def sides_of(answer: str, truth: str) -> list[str] | None:
    """Return the sides of ``answer`` that are values, of which the last is the answer's; none where
    it is an equation that says no value; None where it is no equation, or the truth is one."""
    if _NO_VALUE.search(answer) and not _NO_VALUE.search(truth):
        return []
    if _NOT_EQUAL.search(answer) or "=" in truth:
        return None
    if _OTHER_RELATION.search(_IN_BRACKETS.sub("", answer)):
        return None
    sides = _split(answer)
    if len(sides) < 2:
        return None
    if not all(sides[1:]) or len(sides) > _MOST_SIDES:
        return []
    known = _letters(truth)
    values, names = [], 0
    for side in filter(None, sides):
        unknown = _letters(side) - known
        names_something = unknown or side.startswith("\\") or "(" in side
        if re.search(rf"(?<![A-Za-z\\]){_CHANGED}", side):
            return []
        if (_NAME.fullmatch(side) and names_something) or len(unknown) > 1:
            names += 1
        elif unknown:
            return []
        else:
            values.append(side)
    return values if names <= 1 else []


def _split(text: str) -> list[str]:
    """Return the sides of an equation; one where commas or words outside of brackets make several
    statements of it."""
    statements, sides = split_outside(text, ",;"), split_outside(text, "=")
    if sides is None or statements != [text] or re.search(r"\b(?:or|and)\b", text):
        return [text]
    return [side.strip() for side in sides]


def _letters(text: str) -> set[str]:
    """Return the unknowns of a formula: its letters and Greek ones, but e and i."""
    greek = set(_GREEK.findall(text))
    bare = re.sub(r"_(?:\w|\{[^{}]*\})|\\[A-Za-z]+", " ", GROUP.sub(" ", text))
    return greek | set(re.findall("[A-Za-z]", bare)) - {"e", "i"}
