r"""Bounds on the text of an answer, beyond which it is not compared by value.

A policy can write a text that sympy would evaluate forever, and the verdict on it must not depend
on a timeout. The bounds are checked on the text before anything is parsed: its length, the depth of
its brackets, the digits of its numbers, its powers and factorials, the number of constructs that
double the work, and no operators that compute (sums, integrals, determinants, ...). Answers of
competition problems are far below: under 160 characters, brackets 5 deep, exponents of one or two
digits.
"""

import math
import re
from collections.abc import Iterator

MAX_CHARACTERS = 250
MAX_DEPTH = 8
MAX_DIGITS = 100  # of one number
MAX_POWER_DIGITS = 1_000  # of a number raised to a power
MAX_DEGREE = 100  # sum of the exponents of letters
MAX_GROUP_DEGREE = 24  # product of the exponents of brackets
MAX_MATRIX_POWER = 3
MAX_TERMS = 400  # of products and powers of sums, multiplied out
MAX_FACTORIAL = 1_000
MAX_CHOSEN = 20  # numbers in an answer with a binomial of letters
MAX_COUNTS = {
    "bars": (re.compile(r"\||\\[lr]?[vV]ert\b"), 8),
    r"signs \pm": (re.compile(r"\\[pm][pm]\b|[±∓]"), 4),
    "set operations": (re.compile(r"\\(?:big)?(?:cup|cap)\b|\\setminus\b|[∪∩]"), 4),
    "functions": (re.compile(r"(?:sin|cos|tan|cot|sec|csc|log|ln|exp|lg)"), 6),
    "factorials": (re.compile(r"!"), 6),
    "binomials": (re.compile(r"binom|\\choose|\)\s*_"), 4),
    "radicals": (re.compile(r"sqrt"), 8),
    "relations": (re.compile(r"[=<>≤≥≠]|\\(?:[lg]eq?|[lg]eqslant|[lg]t|neq?)\b"), 6),
}

_COMPUTES = re.compile(
    r"\\(?:i+nt|oint|sum|prod|coprod|lim|max|min|sup|inf(?!t)|partial|nabla|det)"
    r"|[vV]matrix|xrightarrow|frac\s*\{?\s*d\b"
    r"|(?<![A-Za-z])(?:gcd|lcm|eye|zeros|ones|cols|rows|diag|norm|rank|trace|tr|rref|[hv]stack"
    r"|orth\w*|nullspace|diagonalize|eig(?!ht)\w*|svd|SVD)(?![A-Za-z])"
)
_NUMBER = re.compile(r"\d[\d.,]*|\.\d[\d.,]*")
_E_NOTATION = re.compile(r"\d\s*[eE]\s*[-+]?\s*\d{3,}")
_CONSTANT = re.compile(r"(?<![A-Za-z])[eE](?![A-Za-z])|\\pi\b|π")
_POWER = re.compile(r"\s*(?:\^|\*\*)")
_POWER_OF_LETTER = re.compile(r"(?<=[a-df-zA-DF-Z])(?<!\\pi)\s*(?:\^|\*\*)")
_CHOICES = re.compile(r"binom|\\choose|\)\s*_")  # (n)_{k}: permutations
_MATRIX_BEFORE = re.compile(r"\\end\s*\{\w+\}\s*[)\]|]?$")
_NUMBER_BEFORE = re.compile(r"[\d.,]+$")
_ATOM = re.compile(r"[-+ ]*(?:\\[A-Za-z]+|[\d.,]+|[^\d{(\[])?")
_PLAIN_GROUP = re.compile(r"(?:[\d\s.,+\-*/{}()]|\\(?:frac|cdot|times))*")
_OPEN, _CLOSE = "{([", "})]"


def too_much(answer: str) -> str | None:
    """Return why ``answer`` is not compared by value; None when it is small enough."""
    if len(answer) > MAX_CHARACTERS:
        return f"it has {len(answer)} characters, more than {MAX_CHARACTERS}"
    if (depth := max(_depths(answer), default=0)) > MAX_DEPTH:
        return f"its brackets are {depth} deep, more than {MAX_DEPTH}"
    if (operator := _COMPUTES.search(answer)) is not None:
        return f"it holds {operator[0]!r}, which is a computation and not a value"
    numbers = _NUMBER.findall(answer)
    if any(sum(map(str.isdecimal, each)) > MAX_DIGITS for each in numbers) or _E_NOTATION.search(
        answer
    ):
        return f"one of its numbers has more than {MAX_DIGITS} digits"
    for name, (pattern, most) in MAX_COUNTS.items():
        if (count := len(pattern.findall(answer))) > most:
            return f"it holds {count} {name}, more than {most}"
    return _large_power(answer) or _large_factorial(answer)


def _large_power(answer: str) -> str | None:
    """Return which power of ``answer`` is too large, None where none is."""
    groups = (
        answer[place : _end(answer, place)] for place, sign in enumerate(answer) if sign in "({"
    )
    terms = math.prod(_num_terms(group, 1) for group in groups)
    of_letters, of_groups = 0.0, 1.0
    for sign in _POWER.finditer(answer):
        exponent, base = _exponent(answer, sign.end()), _base(answer[: sign.start()])
        if "!" in exponent or _CHOICES.search(exponent):
            return "an exponent of it holds a factorial or a binomial"
        value = _bound(exponent)
        if value > MAX_MATRIX_POWER and _MATRIX_BEFORE.search(answer[: sign.start()]):
            return f"a matrix of it has a power above {MAX_MATRIX_POWER}"
        if not base:
            of_letters += value
        elif _PLAIN_GROUP.fullmatch(base):
            digits = sum(math.log10(max(_size(number), 2.0)) for number in _NUMBER.findall(base))
            if (digits or 1.0) * value > MAX_POWER_DIGITS:
                return f"a power of it has more than {MAX_POWER_DIGITS} digits"
        else:
            of_groups *= max(value, 1.0)
            terms *= _num_terms(base, min(value, MAX_GROUP_DEGREE))
    if of_letters > MAX_DEGREE:
        return f"its exponents add up to {of_letters:.3g}, more than {MAX_DEGREE}"
    if of_groups > MAX_GROUP_DEGREE:
        multiplied = f"the exponents of its brackets multiply to {of_groups:.3g}"
        return f"{multiplied}, more than {MAX_GROUP_DEGREE}"
    if terms > MAX_TERMS:
        return f"its products of sums have {terms:.3g} terms, more than {MAX_TERMS}"
    return None


def _num_terms(group: str, power: float) -> int:
    """Return how many terms a power of ``group`` has when it is multiplied out."""
    summands = 1 + len(re.findall(r"(?<=[^{(\[\s])\s*[-+−]", group))
    return math.comb(int(power) + summands - 1, summands - 1)


def _bound(exponent: str) -> float:
    """Return an upper bound of the value of ``exponent``; letters count as 1, e and pi as 4.

    One number is itself. For several numbers, the product of each plus one exceeds their sum and
    product, and so it does where one is the exponent of a letter; any other power has no bound.
    """
    plain = _POWER_OF_LETTER.sub(" ", exponent)
    if _POWER.search(plain):
        return math.inf
    sizes = [_size(number) for number in _NUMBER.findall(plain)]
    sizes += [4.0] * len(_CONSTANT.findall(plain))
    return sizes[0] if len(sizes) == 1 else math.prod(size + 1 for size in sizes)


def _large_factorial(answer: str) -> str | None:
    """Return which factorial of ``answer`` is too large: only numbers and letters have one."""
    for sign in re.finditer(r"\s*!", answer):
        base = _base(answer[: sign.start()])
        if _NUMBER_BEFORE.fullmatch(base):
            if _size(base) > MAX_FACTORIAL:
                return f"it holds the factorial of a number above {MAX_FACTORIAL}"
        elif re.search(r"\d\s*\d|!|\^|\*|/|\\", base):
            return "it holds the factorial of an expression"
    if _CHOICES.search(answer):
        if _POWER.search(answer) or "!" in answer:
            return "it holds a binomial or permutation together with powers or factorials"
        letters = re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", answer))
        most = MAX_CHOSEN if letters else MAX_FACTORIAL
        if any(_size(number) > most for number in _NUMBER.findall(answer)):
            return f"it holds a binomial or permutation and a number above {most}"
    return None


def _exponent(text: str, start: int) -> str:
    """Return what the power sign before ``start`` raises to; all that follows where that is raised
    to a power one after another."""
    atom = _ATOM.match(text, start)
    assert atom is not None, "it matches the empty text"
    end, name = atom.end(), atom[0].lstrip("-+ ")
    for _ in range(2 if name.startswith("\\") else 0 if name else 1):  # groups
        end = _end(text, end) if text[end : end + 1] in (*_OPEN,) else end
    end += len(text[end:]) - len(text[end:].lstrip(" !'"))
    return text[start:] if _POWER.match(text, end) else text[start:end]


def _base(before: str) -> str:
    """Return the number or the content of the group that ``before`` ends in; "" for a letter."""
    if (number := _NUMBER_BEFORE.search(before)) is not None:
        return number[0]
    if before[-1:] not in (*_CLOSE, "|", "!"):
        return ""
    backwards = before[::-1]
    return backwards[: _end(backwards, 0, _CLOSE, _OPEN)][::-1]


def _end(text: str, start: int, opening: str = _OPEN, closing: str = _CLOSE) -> int:
    """Return the place after the group that opens at ``start``."""
    depths = enumerate(_depths(text[start:], opening, closing), start + 1)
    return next((place for place, depth in depths if depth == 0), len(text))


def _depths(text: str, opening: str = _OPEN, closing: str = _CLOSE) -> Iterator[int]:
    """Yield how many brackets are open after each character."""
    depth = 0
    for character in text:
        depth += (character in opening) - (character in closing)
        yield depth


def _size(number: str) -> float:
    """Return a number's value, or its inverse below 1, since it may be a denominator."""
    try:
        value = float(number.replace(",", "").rstrip("."))
    except ValueError:
        return math.inf
    return max(value, 1 / value) if value else 1.0
