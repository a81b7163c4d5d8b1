r"""Which answers are compared by value: small ones.

A policy can write a text that sympy would evaluate forever, and the verdict on it must not depend
on a timeout. The bounds are checked on the text before anything is parsed: its length, the depth of
its brackets, the digits of its numbers, its powers and factorials, the number of constructs that
double the work, and no operators that compute (sums, integrals, determinants, ...). Answers of
competition problems are far below: under 160 characters, brackets 5 deep, exponents of one or two
digits.
"""

import math
import re

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
_POWER = re.compile(r"\^|\*\*")
_CHOICES = re.compile(r"binom|\\choose|\)\s*_")  # (n)_{k}: permutations
_MATRIX_BEFORE = re.compile(r"\\end\s*\{\w+\}(?:\s*\\right)?\s*[)\]|]?$")
_NUMBER_BEFORE = re.compile(r"[\d.,]+$")
_ATOM = re.compile(r"[-+ ]*(?:\\[A-Za-z]+|[\d.,]+|[^\d{(\[])?")
_PLAIN_GROUP = re.compile(r"(?:[\d\s.,+\-*/{}()]|\\(?:[dt]?frac|left|right|cdot|times|[,;! ]))*")
_OPEN, _CLOSE = "{([", "})]"


def too_much(answer: str) -> str | None:
    """Return why ``answer`` is not compared by value; None when it is small enough."""
    if len(answer) > MAX_CHARACTERS:
        return f"it has {len(answer)} characters, more than {MAX_CHARACTERS}"
    if (depth := _depth(answer)) > MAX_DEPTH:
        return f"its brackets are {depth} deep, more than {MAX_DEPTH}"
    if (operator := _COMPUTES.search(answer)) is not None:
        return f"it holds {operator[0]!r}, which is a computation and not a value"
    longest = max((_digits(number[0]) for number in _NUMBER.finditer(answer)), default=0)
    if longest > MAX_DIGITS or _E_NOTATION.search(answer):
        return f"one of its numbers has more than {MAX_DIGITS} digits"
    for name, (pattern, most) in MAX_COUNTS.items():
        if (count := len(pattern.findall(answer))) > most:
            return f"it holds {count} {name}, more than {most}"
    return _large_power(answer) or _large_factorial(answer)


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in _OPEN) - (character in _CLOSE)
        deepest = max(deepest, depth)
    return deepest


def _large_power(answer: str) -> str | None:
    """Return which power of ``answer`` is too large, None where none is."""
    of_letters, of_groups, terms = 0.0, 1.0, _product_of_sums(answer)
    for sign in _POWER.finditer(answer):
        exponent = _exponent(answer, sign.end())
        if "!" in exponent or _CHOICES.search(exponent):
            return "an exponent of it holds a factorial or a binomial"
        value = _bound(exponent)
        before = answer[: sign.start()].rstrip()
        if value > MAX_MATRIX_POWER and _MATRIX_BEFORE.search(before):
            return f"a matrix of it has a power above {MAX_MATRIX_POWER}"
        base = _base(before)
        if base is None:
            of_letters += value
        elif _PLAIN_GROUP.fullmatch(base):
            if _size_digits(base) * value > MAX_POWER_DIGITS:
                return f"a power of it has more than {MAX_POWER_DIGITS} digits"
        else:
            of_groups *= max(value, 1.0)
            terms *= _num_terms(base, min(value, MAX_GROUP_DEGREE))
    if of_letters > MAX_DEGREE:
        return f"its exponents add up to {of_letters:.3g}, more than {MAX_DEGREE}"
    if of_groups > MAX_GROUP_DEGREE:
        return (
            f"the exponents of its brackets multiply to {of_groups:.3g}, more than"
            f" {MAX_GROUP_DEGREE}"
        )
    if terms > MAX_TERMS:
        return f"its products of sums have {terms:.3g} terms, more than {MAX_TERMS}"
    return None


def _product_of_sums(answer: str) -> float:
    """Return how many terms the product of all groups of ``answer`` has, each to the power 1."""
    terms = 1.0
    for opening in re.finditer(r"[({]", answer):
        terms *= _num_terms(answer[opening.start() : _closing(answer, opening.start())], 1)
    return terms


def _num_terms(group: str, power: float) -> int:
    """Return how many terms a power of ``group`` has when it is multiplied out."""
    summands = 1 + len(re.findall(r"(?<=[^{(\[\s])\s*[-+−]", group))
    return math.comb(int(power) + summands - 1, summands - 1)


def _size_digits(group: str) -> float:
    """Return an upper bound of the decimal digits of a group of numbers: the sum of theirs."""
    sizes = [_size(number[0]) for number in _NUMBER.finditer(group)]
    return sum(math.log10(max(size, 2.0)) for size in sizes) if sizes else 1.0


def _exponent(text: str, start: int) -> str:
    """Return what the power sign before ``start`` raises to: b of a^b, and b^c of a^b^c."""
    end = start
    while True:
        atom = _ATOM.match(text, end)
        assert atom is not None, "it matches the empty text"
        end = atom.end()
        name = atom[0].lstrip("-+ ")
        groups = 2 if name.startswith("\\") else 0 if name else 1
        while groups and end < len(text) and text[end] in _OPEN:
            end, groups = _closing(text, end), groups - 1
        end += len(text[end:]) - len(text[end:].lstrip(" !'"))
        sign = _POWER.match(text, end)
        if sign is None:
            return text[start:end]
        end = sign.end()


def _closing(text: str, start: int) -> int:
    """Return the place after the group that opens at ``start``."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in _OPEN) - (text[place] in _CLOSE)
        if depth == 0:
            return place + 1
    return len(text)


def _base(before: str) -> str | None:
    """Return the number or the content of the group that ``before`` ends in; None for a letter."""
    number = _NUMBER_BEFORE.search(before)
    if number is not None:
        return number[0]
    if before[-1:] not in (*_CLOSE, "|", "!"):
        return None
    depth = 0
    for place in range(len(before) - 1, -1, -1):
        depth += (before[place] in _CLOSE) - (before[place] in _OPEN)
        if depth == 0:
            return before[place:]
    return before


def _bound(exponent: str) -> float:
    """Return an upper bound of the value of ``exponent``; letters count as 1, e and pi as 4.

    One number is itself. For several numbers, the product of each plus one exceeds their sum and
    product; it is raised to the exponents inside ``exponent``, except those of letters (x^2).
    """
    tower, rest = 1.0, exponent
    while (sign := _POWER.search(rest)) is not None:
        inner = _exponent(rest, sign.end())
        base = rest[: sign.start()].rstrip()
        if _base(base) is not None or _CONSTANT.search(base):
            tower = min(tower * max(_bound(inner), 1.0), 1e9)
        rest = rest[: sign.start()] + " " + rest[sign.end() + len(inner) :]
    sizes = [_size(number[0]) for number in _NUMBER.finditer(rest)]
    sizes += [4.0] * len(_CONSTANT.findall(rest))
    product = sizes[0] if len(sizes) == 1 else 1.0
    for size in sizes if len(sizes) > 1 else ():
        product = min(product * (size + 1), 1e9)
    return product**tower if tower < 30 else float("inf")


def _size(number: str) -> float:
    """Return a number's value, or its inverse below 1, since it may be a denominator."""
    digits = number.replace(",", "").rstrip(".")
    try:
        value = float(digits)
    except ValueError:
        return float("inf")
    return max(value, 1 / value) if value else 1.0


def _large_factorial(answer: str) -> str | None:
    """Return which factorial of ``answer`` is too large: only numbers and letters have one."""
    for sign in re.finditer("!", answer):
        before = answer[: sign.start()].rstrip()
        number = _NUMBER_BEFORE.search(before)
        if number is not None and _size(number[0]) > MAX_FACTORIAL:
            return f"it holds the factorial of a number above {MAX_FACTORIAL}"
        group = _base(before) if number is None else None
        if group is not None and re.search(r"\d\s*\d|!|\^|\*|/|\\", group):
            return "it holds the factorial of an expression"
    if _CHOICES.search(answer):
        if _POWER.search(answer) or "!" in answer:
            return "it holds a binomial or permutation together with powers or factorials"
        letters = re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", answer))
        most = MAX_CHOSEN if letters else MAX_FACTORIAL
        if any(_size(number[0]) > most for number in _NUMBER.finditer(answer)):
            return f"it holds a binomial or permutation and a number above {most}"
    return None


def _digits(text: str) -> int:
    return sum(character.isdecimal() for character in text)
