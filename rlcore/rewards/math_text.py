r"""One writing of mathematical texts: LaTeX with few commands, whatever an answer was written in.

Answers in chat have √2, ½ and 2*pi for ``\sqrt{2}``. Signs that look alike become one: dashes a
minus, wide digits plain ones; what is not seen goes; all upright text is in ``\text{}``.
"""

import re
from collections.abc import Callable
from unicodedata import normalize

GROUP = re.compile(r"\\text\{([^{}]*)\}")
UNIT_LETTERS = frozenset("mgshlL")
_ALIKE = str.maketrans(
    dict.fromkeys("‐‑‒–−", "-")  # no em dash, which is no minus
    | dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff")
    | {chr(0xFEE0 + ord(sign)): sign for sign in "0123456789.,+-/%()="}
)
_COMMANDS = r"\infty \cdot \cdot \times / \cup \cap \in \le \ge"
_SIGNS = {sign: f"{name} " for sign, name in zip("∞·⋅×÷∪∩∈≤≥", _COMMANDS.split(), strict=True)}
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_ON_THE_LINE = str.maketrans(_RAISED, "0123456789-")
_NAMES = "two three four five six seven eight nine ten"
_BASES = {name: base for base, name in enumerate(_NAMES.split(), start=2)}


def _in_base(found: re.Match[str]) -> str:
    """Return a number with its base in digits, as 204_{5}, and without the base ten."""
    base = _BASES.get(found[2], found[2])
    if not str(base).isdigit():
        return found[0]
    return found[1] if int(base) == 10 else f"{found[1]}_{{{int(base)}}}"


def _fraction(found: re.Match[str]) -> str:
    above, below = normalize("NFKC", found[0]).split("\N{FRACTION SLASH}")
    return rf"\frac{{{above}}}{{{below}}}"


_REWRITTEN: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it)|mbox)\s*\{", r"\\text{"),
        (r"\\(?:text)?color\s*\{\w{1,20}\}\s*\{([^{}]*)\}", r"\1"),
        (r"\{([-+:])\}", r"\1"),
        (r"\\colon(?![A-Za-z])", ":"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\(?:left|right|[bB]ig+[lr]?)(?![A-Za-z])", ""),
        (r"\\[dtc]frac", r"\\frac"),
        (r"(?<=\d)(?:\{,\}|\\[,!])(?=\d{3}(?!\d))", ""),
        (r"(?<=\d)['’](?=\d{3}(?!\d))", ""),
        (r"\{,\}", ","),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\[,;: ]|(?<!^)~", " "),
        (r"(?<=\d)\s*\\text\{\s*to\s*\}\s*(?=\d)", ":"),
        # A letter by itself is a variable in any font, unless it is the name of a unit.
        (rf"\\text\{{([A-Za-z])(?<![{''.join(UNIT_LETTERS)}])\}}", r"\1"),
        (r"(?<![\w.}\\])\\text\{([\d.,]+)\}", r"\1"),
        (
            r"^\(?(\d\w*)\)?\s*(?:_|\\text\{\s*(?:in )?base\s*\})"
            r"[\s{]*(?:\\text\{\s*)?(\d+|[a-z]+)[\s}]*$",
            _in_base,
        ),
        (r"(?:\\text\{)?(?<![A-Za-z\\])negative (?=(?:pi|infinity)(?![A-Za-z]))", "-"),
        (r"(?:\\text\{)?(?<![A-Za-z\\])(?:positive )?pi(?![A-Za-z])\}?", r"\\pi "),
        (r"(?:\\text\{)?(?<![A-Za-z\\])(?:positive )?infinity(?![A-Za-z])\}?", r"\\infty "),
        (r"(?<=[\w)}])\*\*(\d+|[A-Za-z])", r"^{\1}"),
        (r"(?<=[\w)}])\*\*(?=[({])", "^"),
        (r"([√∛∜])\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+|[A-Za-z]))", r"\1{\2\3\4}"),
        (r"√(?=\{)", r"\\sqrt"),
        (r"∛(?=\{)", r"\\sqrt[3]"),
        (r"∜(?=\{)", r"\\sqrt[4]"),
        (f"⁻?[{_RAISED[:-1]}]+", lambda power: f"^{{{power[0].translate(_ON_THE_LINE)}}}"),
        ("[¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]", _fraction),
        (f"[{''.join(_SIGNS)}]", lambda sign: _SIGNS[sign[0]]),
    )
)


def in_latex(text: str) -> str:
    r"""Return ``text`` in the one writing that everything else here reads.

    >>> in_latex("3√2 + x¹⁰"), in_latex("1½"), in_latex("2*pi").rstrip(), in_latex(r"5\mathrm{cm}")
    ('3\\sqrt{2} + x^{10}', '1\\frac{1}{2}', '2*\\pi', '5\\text{cm}')
    """
    text = text.translate(_ALIKE)
    for pattern, instead in _REWRITTEN:
        text = pattern.sub(instead, text)
    return text


def split_outside(text: str, signs: str) -> list[str] | None:
    """Return the parts of ``text`` between ``signs`` that are outside all brackets; None where
    brackets do not match, whatever their kinds, as those of [1, 2)."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return None
        if depth == 0 and character in signs:
            parts.append("")
        else:
            parts[-1] += character
    return parts if depth == 0 else None
