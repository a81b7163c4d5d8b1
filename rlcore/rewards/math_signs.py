r"""Signs and words of plain text as LaTeX: answers in chat have √2, ½ and 2*pi for ``\sqrt{2}``."""

import re
from unicodedata import normalize

_SIGNS = {
    "∞": r"\infty ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
}
_FRACTION = re.compile("[¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]")
_SIGN = re.compile(f"[{''.join(_SIGNS)}]")
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_POWER = re.compile("⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_ON_THE_LINE = str.maketrans(_RAISED, "0123456789-")
_ROOT = re.compile(r"([√∛∜])\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+|[A-Za-z]))")
_DEGREES = {"√": "", "∛": "[3]", "∜": "[4]"}
_RAISED_BY_STARS = re.compile(r"(?<=[\w)}])\*\*(?:(\d+|[A-Za-z])|(?=[({]))")
_WORD = re.compile(r"(?<![A-Za-z\\])(pi|infinity)(?![A-Za-z])")
_WORDS = {"pi": r"\pi ", "infinity": r"\infty "}


def in_latex(text: str) -> str:
    r"""Return ``text`` with LaTeX for roots, powers, fractions and names of plain text.

    >>> in_latex("3√2 + x¹⁰"), in_latex("1½"), in_latex("2*pi").rstrip()
    ('3\\sqrt{2} + x^{10}', '1\\frac{1}{2}', '2*\\pi')
    """
    text = _WORD.sub(lambda word: _WORDS[word[1]], text)
    text = _RAISED_BY_STARS.sub(lambda power: f"^{{{power[1]}}}" if power[1] else "^", text)
    if text.isascii():
        return text
    text = _ROOT.sub(
        lambda root: rf"\sqrt{_DEGREES[root[1]]}{{{root[2] or root[3] or root[4] or ''}}}", text
    )
    text = _POWER.sub(lambda power: f"^{{{power[0].translate(_ON_THE_LINE)}}}", text)
    text = _FRACTION.sub(lambda sign: _fraction(sign[0]), text)
    return _SIGN.sub(lambda sign: _SIGNS[sign[0]], text)


def _fraction(sign: str) -> str:
    above, below = normalize("NFKC", sign).split("\N{FRACTION SLASH}")
    return rf"\frac{{{above}}}{{{below}}}"
