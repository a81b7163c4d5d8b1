r"""The reward ``math``: whether a response ends in the right mathematical answer, by its value.

Both texts are brought into one writing (``math_text``) and compared by the kind of value that the
ground truth is: a choice, words, a time of day, a ratio, a number with a unit (``math_number``,
``math_units``), or a formula (``math_formula``). Each text is read as a whole, so that a number
somewhere in a sentence is not an answer. Every response gets a verdict.
"""

import re
from collections.abc import Sequence
from fractions import Fraction

from rlcore.rewards.boxed import final_answers, is_cut_off, joined_boxes, last_boxed
from rlcore.rewards.math_limits import MAX_CHARACTERS, too_much
from rlcore.rewards.math_number import number_in, same_number
from rlcore.rewards.math_text import GROUP, in_latex, split_outside
from rlcore.rewards.math_units import is_of, ratio, split_unit, summed
from rlcore.rewards.types import Reward, RewardRow, Scorer
from schemas.errors import UserError

_ANNOUNCED = re.compile(
    r"^\s*(?:\\text\{)?\s*(?:the )?(?:final )?answer(?: is)?\b\s?:?\s*\}?", re.IGNORECASE
)
_BEFORE_WORDS = re.compile(
    r"\A\s*(?:(\*\*?|__?|\$)([^$*_]+)\1|\\\(([^()]+)\\\))\s+([A-Za-z][A-Za-z .]*)\Z"
)
_REMARK = re.compile(r"(.*\d.*?)\s*\(([^()]*)\)\s*")
_JOINING = {"or", "and", "if", "for", ",", ";", "d"}  # also of dx
_LONGEST = 10_000  # characters of an answer to a short ground truth

_WORDS = re.compile(r"[A-Za-z][A-Za-z'’]*(?:[-.,:;!][A-Za-z]{3,})*[.!]?")
_PRODUCT = re.compile(r"[abcdkmnpqrstuvwxyz]{1,3}")  # of variables; other letters are a word
_ARTICLE = re.compile(r"^(?:a|an|the) ")
_SAME_WORDS = {
    **dict.fromkeys(("does not exist", "doesn't exist"), "dne"),
    "not defined": "undefined",
    "no solutions": "no solution",
}
_CLOCK = re.compile(  # no ratio; an hour by itself is of the morning or the afternoon
    r"(\d{1,2})(?:(:[0-5]\d(?::[0-5]\d)?)(?:([ap])\.?m\.?)?|([ap])\.?m\.?)", re.IGNORECASE
)
_CHOICE = re.compile(r"(?:(?i:option|choice)\s*)?\(?([A-Ja-j])\)?")
# (C) 5, as AMC's solutions say; C. Paris; but not: (C) is wrong.
_CHOICE_AND_CONTENT = re.compile(
    r"(?:(?i:option|choice)\s*)?(?:\(([A-Ja-j])\)|([A-Ja-j])[).:])"
    r"(?!\s*(?i:is|was|can|cannot|could|would|does|not|no|or|and)\b)(.+)"
)
_OTHER_CHOICE = re.compile(
    r"\([A-Ja-j]\)|(?<![A-Za-z0-9])[A-J][):]"
    r"|(?:^|[,;/&]|\b(?:or|and|nor|not|but)\b)\s*[A-J](?![A-Za-z0-9'’]|\s+[a-z])"
)


def scorer() -> Scorer:
    """Return the reward function: 1 for a right answer, else 0; both are verdicts.

    Raises UserError for a row without a ground truth.
    """
    # Seconds of import, which no row should pay for.
    import rlcore.rewards.math_formula  # noqa: F401

    def score(row: RewardRow) -> Reward:
        if row.ground_truth is None or not row.ground_truth.strip():
            raise UserError("the row has no ground_truth")
        answers = final_answers(row.response)
        if not answers:
            cut = is_cut_off(row.response)
            why = r"the last \boxed{ is not closed" if cut else "the response holds no answer"
            return Reward.no_answer(row, why)
        right, why = _judge_together(answers, _answer_in(row.ground_truth))
        return Reward.of(row, float(right), right, detail=why, answer=", ".join(answers))

    return score


def _answer_in(ground_truth: str) -> str:
    r"""Return the answer in a ground truth: that of a worked solution is in its last box."""
    boxed = last_boxed(ground_truth)
    return ground_truth if boxed is None else ", ".join(joined_boxes(ground_truth) or [boxed])


def check_truth(ground_truth: str) -> None:
    """Raise UserError for a ground truth that is no answer: without a letter or digit, or a whole
    solution in the form of GSM8K."""
    ground_truth = _answer_in(ground_truth)
    if not any(character.isalnum() for character in ground_truth):
        raise UserError(f"the ground_truth {ground_truth[:80]!r} holds neither letter nor digit")
    if "####" in ground_truth:
        raise UserError(
            f"the ground_truth {ground_truth[-80:]!r} is a solution and no answer: it holds '####'"
        )


def _judge_together(answers: Sequence[str], ground_truth: str) -> tuple[bool, str]:
    """Return ``judge`` of one answer; several are right as the set of values that is the truth, or
    where each is (1/2, or .5)."""
    if len(answers) == 1:
        return judge(answers[0], ground_truth)
    if judge(rf"\{{{', '.join(answers)}\}}", ground_truth)[0]:
        return True, ""
    right = all(judge(answer, ground_truth)[0] for answer in answers)
    return right, "" if right else f"its {len(answers)} boxes count as one set of values"


def judge(answer: str, ground_truth: str) -> tuple[bool, str]:
    """Return whether the two are the same text or value, and why values were not compared."""
    if len(answer) > _LONGEST + 10 * len(ground_truth):  # megabytes take seconds to make plain
        return False, f"the answer is not compared by value: {too_much(answer)}"
    answer, truth = _ANNOUNCED.sub("", in_latex(answer)), in_latex(ground_truth)
    if (said := _plain(answer)) == (wanted := _plain(truth)):
        return True, ""
    if (letter := _CHOICE.fullmatch(wanted)) is not None and re.search(r"[A-J(]", truth):
        return _chosen(_undecorated(answer)) == letter[1].lower(), ""
    if _WORDS.fullmatch(wanted) and not _PRODUCT.fullmatch(wanted):
        return _folded(answer) == _folded(truth), ""
    if (time := _time(wanted)) is not None:
        return _time(said) == time, ""
    answer, truth = bare(answer), _undelimited(truth)
    readings = [answer] if len(answer) > MAX_CHARACTERS else readings_of(answer, truth)
    if not readings:
        return False, "the equation does not say what the value is"
    verdicts = [same_value(each, truth) for each in readings]
    if len({right for right, _ in verdicts}) > 1:
        return False, "the sides of the equation differ"
    return verdicts[-1]


def readings_of(answer: str, truth: str = "") -> list[str]:
    """Return the texts in ``answer`` that each give its value, the answer itself last: of
    10/2 = 5 both sides, of 12 (one dozen) and 1/2 or .5 both writings; none where it is an equation
    that gives no value."""
    plain = split_unit(answer, letters=not truth)[0]
    unit = answer[len(plain) :] if answer.startswith(plain) else ""
    sides = sides_of(answer.removesuffix(unit), truth)
    if sides is not None:
        return [*sides[:-1], sides[-1] + unit] if sides else []
    text = re.sub(r"\\text\{\s*(or|\([^(){}]*\))\s*\}", r" \1 ", answer)
    text = re.sub(r"(\\text\{[^(){}]*)(\([^(){}]*\))\s*\}", r"\1} \2", text)
    either = text.split(" or ")
    if len(either) == 2 and all(any(map(str.isdigit, each)) for each in either):
        return either if same_value(*either)[0] else [answer]
    if (found := _REMARK.fullmatch(text)) is None or found[2].isdigit():  # a footnote: 72 (72)
        return [answer]
    value, remark = found.groups()
    if _is_unit(remark) or _is_converted(value, remark):
        return [value]
    return [remark, value] if same_value(remark, value)[0] else [answer]


# Of x=5, f(2)=5, a+b=5 and \frac{10}{2}=5 the last side is the value; 2x=5 has none.
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
    sides = _sides(answer)
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


def _sides(text: str) -> list[str]:
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


def _is_unit(remark: str) -> bool:
    return not any(map(str.isdigit, remark)) and split_unit(f"1 {remark}")[1] is not None


def _is_converted(value: str, remark: str) -> bool:
    """Return whether ``remark`` gives a bare number in another unit: 72 (1.2 hours)."""
    bare_remark, unit = split_unit(remark, letters=True)
    number, other = number_in(value), number_in(bare_remark)
    if number is None or other is None or unit is None or not other.value:
        return False
    return is_of(unit, number.value / other.value)


def same_value(answer: str, truth: str) -> tuple[bool, str]:
    """Return ``judge`` of two texts of one value each: ratio, number with a unit, or formula."""
    if (why := too_much(answer)) is not None:
        return False, f"the answer is not compared by value: {why}"
    if (ratios := _ratio(truth)) and (said := _ratio(answer)):
        return ratios == said, ""
    expected, truth_unit = summed(truth) or split_unit(truth)
    also = frozenset() if truth_unit is None else truth_unit.words
    given, unit = summed(answer) or split_unit(answer, letters=truth_unit is not None, also=also)
    factor = ratio(truth_unit, unit)
    if factor is None:
        return False, "the answer has another unit than the ground truth"
    number, expected_number = number_in(given), number_in(expected)
    if number is not None and expected_number is not None:
        return same_number(expected_number, number, factor), ""
    if unread := _words_in(given) - _words_in(expected) - _JOINING:
        return False, f"what {', '.join(sorted(unread))!r} says of the value is not known"
    from rlcore.rewards.math_formula import same_formula

    return same_formula(expected, given, factor), ""


def _ratio(text: str) -> list[Fraction]:
    """Return the terms of a ratio, as 6:8, in parts of the first one; [] for other texts."""
    terms = [number_in(term) for term in text.split(":")]
    worth = [term.worth for term in terms if term is not None]
    if len(terms) < 2 or len(worth) < len(terms) or not worth[0]:
        return []
    return [each / worth[0] for each in worth]


def _words_in(text: str) -> set[str]:
    """Return what is in upright groups, in lower case."""
    return {group[1].strip().lower() for group in GROUP.finditer(text)} - {""}


def _time(text: str) -> tuple[int, str, bool] | None:
    """Return the hour of a time of day, what follows it, and whether it is one of 24; None for
    other texts."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    hour, half = int(found[1]), (found[3] or found[4] or "").lower()
    if half and hour <= 12:
        return hour % 12 + 12 * (half == "p"), found[2] or ":00", True
    return hour, found[2] or ":00", hour > 12


def _chosen(said: str) -> str | None:
    """Return the choice that an answer names, alone or with what it denotes; None where its words
    deny it or name another one."""
    said = " ".join(said.split())
    if (alone := _CHOICE.fullmatch(said)) is not None:
        return alone[1].lower()
    both = _CHOICE_AND_CONTENT.fullmatch(said)
    if both is None or _OTHER_CHOICE.search(both[3]):
        return None
    return (both[1] or both[2]).lower()


def _folded(text: str) -> str:
    """Return words without case, fonts, the stop at their end, the article before them."""
    words = _ARTICLE.sub("", " ".join(_undecorated(text).split()).casefold())
    return _SAME_WORDS.get(words, words).replace(" ", "")


def bare(answer: str) -> str:
    """Return an answer without its announcement, emphasis, the stop at its end, the signs of a
    formula, also before words (**42** apples), and a group that is all of it."""
    text = _BEFORE_WORDS.sub(r"\2\3 \4", _ANNOUNCED.sub("", answer))
    text = text.strip("*_` \n").rstrip(".,;:").strip("*_` \n")
    whole = GROUP.fullmatch(text)
    return _undelimited(text if whole is None else whole[1])


def _undelimited(text: str) -> str:
    """Return ``text`` without the signs that begin and end a formula."""
    text = text.strip()
    for begin, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inner = text.removeprefix(begin).removesuffix(end)
        if f"{begin}{inner}{end}" == text and inner and "$" not in inner.replace(r"\$", ""):
            return inner.strip()
    return text


def _undecorated(text: str) -> str:
    """Return ``text`` without fonts, dollar signs, Markdown's emphasis and the full stop at its
    end. A group stays where its digits would join others."""
    bare = re.sub(r"(?<!\d)\\text\{([^{}]*)\}|\\text\{((?![\d.])[^{}]*)\}", r"\1\2", text)
    return re.sub(r"\\?\$", " ", bare).strip(" \n\t*_`").rstrip(".").strip("*_` ")


def _plain(text: str) -> str:
    """Return ``text`` without spaces but those between digits, fonts, dollar signs, thousands
    commas, Markdown's emphasis, the full stop at its end."""
    bare = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", _undecorated(text))
    return re.sub(r"(?<!\d) | (?!\d)", "", re.sub(r"\s+", " ", bare))
