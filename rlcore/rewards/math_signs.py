r"""Signs and words of plain text as LaTeX: answers in chat have √2, ½ and 2*pi for ``\sqrt{2}``.

Signs that look alike become one: dashes a minus, wide digits plain ones, and what is not seen goes.
"""

import re
from unicodedata import normalize

# Commands whose group is set upright; the last letter of each pattern is followed by a brace.
UPRIGHT = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it)|mbox)\s*"
GROUP = re.compile(rf"{UPRIGHT}\{{([^{{}}]*)\}}")
UNIT_LETTERS = frozenset("mgshlL")
_SIGNS = {
    "∞": r"\infty ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
}
_ALIKE = str.maketrans(
    dict.fromkeys("‐‑‒–−", "-")  # no em dash, which is no minus
    | dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff")
    | {chr(0xFEE0 + ord(sign)): sign for sign in "0123456789.,+-/%()="}
)
_UNSEEN = (  # in LaTeX
    (re.compile(r"\\(?:text)?color\s*\{\w{1,20}\}\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\{([-+:])\}"), r"\1"),
    (re.compile(r"\\colon(?![A-Za-z])"), ":"),
    (re.compile(r"\\([lr])brace(?![A-Za-z])"), lambda side: r"\{" if side[1] == "l" else r"\}"),
    (re.compile(rf"(?<=\d)\s*{UPRIGHT}\{{\s*to\s*\}}\s*(?=\d)"), ":"),
    # A letter by itself is a variable in any font, unless it is the name of a unit.
    (re.compile(rf"{UPRIGHT}\{{([A-Za-z])\}}"), lambda f: f[0] if f[1] in UNIT_LETTERS else f[1]),
    (re.compile(rf"(?<![\w.}}\\]){UPRIGHT}\{{([\d.,]+)\}}"), r"\1"),
)
_BASES = {
    word: base
    for base, word in enumerate(
        ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), start=2
    )
}
_IN_BASE = re.compile(
    rf"^\(?(\w+)\)?\s*(?:_\s*\{{?\s*(?:{UPRIGHT}\{{)?\s*(\d+|[a-z]+)\s*\}}*"
    rf"|{UPRIGHT}\{{\s*(?:in )?base\s*\}}\s*(\d+))$"
)
_FRACTION = re.compile("[¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]")
_SIGN = re.compile(f"[{''.join(_SIGNS)}]")
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_POWER = re.compile("⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_ON_THE_LINE = str.maketrans(_RAISED, "0123456789-")
_ROOT = re.compile(r"([√∛∜])\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+|[A-Za-z]))")
_DEGREES = {"√": "", "∛": "[3]", "∜": "[4]"}
_RAISED_BY_STARS = re.compile(r"(?<=[\w)}])\*\*(?:(\d+|[A-Za-z])|(?=[({]))")
_WORD = re.compile(
    rf"(?:{UPRIGHT}\{{)?(?<![A-Za-z\\])(?:(positive|negative) )?(pi|infinity)(?![A-Za-z])\}}?"
)
_WORDS = {"pi": r"\pi ", "infinity": r"\infty "}


def in_latex(text: str) -> str:
    r"""Return ``text`` with LaTeX for roots, powers, fractions and names of plain text.

    >>> in_latex("3√2 + x¹⁰"), in_latex("1½"), in_latex("2*pi").rstrip()
    ('3\\sqrt{2} + x^{10}', '1\\frac{1}{2}', '2*\\pi')
    """
    text = text.translate(_ALIKE)
    if "\\" in text or "{" in text:
        for pattern, instead in _UNSEEN:
            text = pattern.sub(instead, text)
    text = _in_base(text)
    text = _WORD.sub(lambda word: "-" * (word[1] == "negative") + _WORDS[word[2]], text)
    text = _RAISED_BY_STARS.sub(lambda power: f"^{{{power[1]}}}" if power[1] else "^", text)
    if text.isascii():
        return text
    text = _ROOT.sub(
        lambda root: rf"\sqrt{_DEGREES[root[1]]}{{{root[2] or root[3] or root[4] or ''}}}", text
    )
    text = _POWER.sub(lambda power: f"^{{{power[0].translate(_ON_THE_LINE)}}}", text)
    text = _FRACTION.sub(lambda sign: _fraction(sign[0]), text)
    return _SIGN.sub(lambda sign: _SIGNS[sign[0]], text)


def _in_base(text: str) -> str:
    """Return a number with its base in digits, as 204_{5}, and without the base ten."""
    found = _IN_BASE.match(text) if "_" in text or "base" in text else None
    if found is None or not found[1].isalnum() or not found[1][0].isdigit():
        return text
    said = found[2] or found[3]
    base = int(said) if said.isdigit() else _BASES.get(said)
    if base is None:
        return text
    return found[1] if base == 10 else f"{found[1]}_{{{base}}}"


def _fraction(sign: str) -> str:
    above, below = normalize("NFKC", sign).split("\N{FRACTION SLASH}")
    return rf"\frac{{{above}}}{{{below}}}"
