r"""Which sides of an equation say the value of an answer: of ``x=5``, ``f(2)=5``, ``a+b=5`` and
``\frac{10}{2}=5`` the last, and of ``2x=5`` none, whose unknown has another value."""

import re

from rlcore.rewards.math_signs import GROUP, UPRIGHT

_NOT_EQUAL = re.compile(r"\\(?:approx|sim(?:eq)?|cong|ne|neq|equiv|propto)(?![A-Za-z])|[≈≠≡]|^\s*~")
_OTHER_RELATION = re.compile(r"[<>:]=|(?<![\d)])!=|==|[<>]")
_IN_BRACKETS = re.compile(r"(?<=[A-Za-z])\([^()]*\)")
_COMMAND = re.compile(r"\\[A-Za-z]+")
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
    rf"|{UPRIGHT}\{{\s*{_NOT}[A-Za-z .]*\}}|{_NOT}[A-Za-z]{{3,}}(?: {_NOT}[A-Za-z]+){{0,3}}"
    r"|(?:\\(?:sin|cos|tan|cot|sec|csc|log|ln|gcd|lcm|max|min|det)(?![A-Za-z])"
    r"|\\operatorname\{\w+\})[^=]*"
)


def sides_of(answer: str, truth: str) -> list[str] | None:
    """Return the sides of ``answer`` that are values, of which the last is the answer's; none where
    it is an equation that says no value; None where it is no equation, or the truth is one."""
    if _NOT_EQUAL.search(answer) and not _NOT_EQUAL.search(truth):
        return None if re.search(r"\\(?:ne|neq)(?![A-Za-z])|≠", answer) else []
    if "=" not in answer or "=" in truth or _OTHER_RELATION.search(_IN_BRACKETS.sub("", answer)):
        return None
    sides = [side.strip() for side in _split(answer)]
    if len(sides) < 2 or not all(sides[1:]) or len(sides) > 6:
        return None if len(sides) < 2 else []
    known = _letters(truth)
    values, names = [], 0
    for side in sides:
        unknown = _letters(side) - known
        if not side:
            continue
        if re.search(rf"(?<![A-Za-z\\]){_CHANGED}", side):
            return []
        if (_NAME.fullmatch(side) and (unknown or _of_something(side))) or len(unknown) > 1:
            names += 1
        elif unknown:
            return []
        else:
            values.append(side)
    return values if names <= 1 else []


def _of_something(side: str) -> bool:
    return side.startswith("\\") or "(" in side


def _split(text: str) -> list[str]:
    """Return the parts of ``text`` between the signs of equality outside all brackets; one part
    where commas or words outside of brackets make several statements of it."""
    parts, depth, begin = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        if depth == 0 and character in ",;":
            return [text]
        if depth == 0 and character == "=":
            parts.append(text[begin:place])
            begin = place + 1
    if re.search(r"\b(?:or|and)\b", text):
        return [text]
    return [*parts, text[begin:]]


def _letters(text: str) -> set[str]:
    """Return the unknowns of a formula: its letters and Greek ones, but e and i."""
    greek = set(_GREEK.findall(text))
    bare = re.sub(r"_(?:\w|\{[^{}]*\})", "", _COMMAND.sub(" ", GROUP.sub(" ", text)))
    return greek | set(re.findall("[A-Za-z]", bare)) - {"e", "i"}
