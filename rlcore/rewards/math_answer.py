r"""The reward ``math``: whether a response ends in the right mathematical answer, by its value.

The answer of a response that ends in ``<answer>...</answer>`` is within these tags. It is the last
``\boxed{}``, else what follows the last "####", "A:" or "answer is/:", else the last line, behind
``</think>``, from the last "is", "are", "get" or "equals" on. Boxes joined by "or" are one set of
values. A last box that is not closed, as where the limit of tokens cut it off, leaves no answer.
The answer is compared as text, then as a number (``math_number``, ``math_units``), then as a
formula by math-verify (``math_value``): cheapest first, and each text is read as a whole, so that a
number somewhere in a sentence is not an answer. A ground truth of words only is compared as text,
where letters are not variables.

An answer beyond the limits of ``math_limits`` is wrong, with the reason: every response gets a
verdict.
"""

import re
from collections import deque
from collections.abc import Sequence
from fractions import Fraction

from rlcore.boxed import is_cut_off, joined_boxes, last_boxed
from rlcore.rewards.math_equation import sides_of
from rlcore.rewards.math_limits import MAX_CHARACTERS, too_much
from rlcore.rewards.math_number import number_in, same_number
from rlcore.rewards.math_signs import GROUP, UPRIGHT, in_latex
from rlcore.rewards.math_units import ratio, split_unit, summed
from rlcore.rewards.types import Reward, RewardRow, Scorer
from schemas.errors import UserError
from schemas.outcomes import Outcome

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_THOUGHT = "</think>"
_MARKER = re.compile(r"(?:####|answer\s*(?:is\b|:)|^A:)\s*:?", re.IGNORECASE | re.MULTILINE)
_SAID = re.compile(r"\b(?:is|are|gets?|equals?)\b:?", re.IGNORECASE)
_JOINING = {"or", "and", "if", "for", ",", ";", "d"}  # also of dx
_DECORATION = re.compile(r"\\(?:left|right)(?![A-Za-z])|\\[,;:! ]|~|\\?\$")
_WORDS = re.compile(r"[A-Za-z][A-Za-z'’]*(?:[-.,:;!][A-Za-z]{3,})*[.!]?")
_ARTICLE = re.compile(r"^(?:a|an|the) ")
_SAME_WORDS = {
    **dict.fromkeys(("does not exist", "doesn't exist"), "dne"),
    "not defined": "undefined",
    "no solutions": "no solution",
}
_ANNOUNCED = re.compile(
    rf"^(?:{UPRIGHT}\{{)?\s*(?:the )?(?:final )?answer is:?\s*\}}?", re.IGNORECASE
)
_REMARK = re.compile(r"(.*\d.*?)\s*\(([^()]*)\)\s*")
_PRODUCT = re.compile(r"[abcdkmnpqrstuvwxyz]{1,3}")  # of variables; other letters are a word
_CLOCK = re.compile(  # no ratio; an hour by itself is of the morning or the afternoon
    r"(\d{1,2})(?:(:[0-5]\d(?::[0-5]\d)?)(?:([ap])\.?m\.?)?|([ap])\.?m\.?)", re.IGNORECASE
)
_CHOICE = re.compile(r"(?:(?i:option|choice)\s*)?\(?([A-Ja-j])\)?")
_CHOICE_AND_VALUE = re.compile(r"(?:\(([A-J])\)|([A-J])[).:])(.+)")  # (C) 5, as AMC's solutions say
_LONGEST = 10_000  # characters of an answer to a short ground truth


def scorer() -> Scorer:
    """Return the reward function: 1 for a right answer, else 0; both are verdicts.

    Raises UserError for a row without a ground truth.
    """
    # Seconds of import, which no row should pay for.
    import rlcore.rewards.math_value  # noqa: F401

    def score(row: RewardRow) -> Reward:
        if row.ground_truth is None or not row.ground_truth.strip():
            raise UserError("the row has no ground_truth")
        answers = final_answers(row.response)
        if not answers:
            cut = is_cut_off(row.response)
            detail = r"the last \boxed{ is not closed" if cut else "the response holds no answer"
            return Reward(row.trajectory_id, Outcome.NO_ANSWER, 0.0, correct=False, detail=detail)
        right, why = _judge_together(answers, row.ground_truth)
        return Reward(
            row.trajectory_id,
            Outcome.OK if right else Outcome.WRONG,
            float(right),
            correct=right,
            detail=why,
            answer=", ".join(answers),
        )

    return score


def check_truth(ground_truth: str) -> None:
    """Raise UserError for a ground truth that is no answer: without a letter or digit, or a whole
    solution in the form of GSM8K."""
    if not any(character.isalnum() for character in ground_truth):
        raise UserError(f"the ground_truth {ground_truth[:80]!r} holds neither letter nor digit")
    if "####" in ground_truth:
        raise UserError(
            f"the ground_truth {ground_truth[-80:]!r} is a solution and no answer: it holds '####'"
        )


def final_answers(response: str) -> list[str]:
    """Return the answer in ``response``: one text, several where boxes make one answer, or none."""
    whole, response = response, _within_tags(response)
    if is_cut_off(response):
        return []
    if (boxed := last_boxed(response)) is not None:
        return joined_boxes(response) or [boxed] * bool(boxed)
    marked = _end_of_last(_MARKER, response)
    tail = response[marked:] if marked else response.rpartition(_THOUGHT)[2] or response
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    if not lines:
        return []
    if marked:
        return lines[:1]
    if response is not whole and len(lines) > 1:  # of which none can be said to be the answer
        return ["; ".join(lines)]
    return [lines[-1][_end_of_last(_SAID, lines[-1]) :].strip() or lines[-1]]


def _within_tags(response: str) -> str:
    """Return the content of the tags that end ``response``, the form of DeepSeek-R1's prompts
    (arXiv 2501.12948, table 1); all of it where none do."""
    tags = deque(_TAG.finditer(response), maxlen=2)
    if [tag[1] for tag in tags] != ["", "/"] or response[tags[1].end() :].strip():
        return response
    return response[tags[0].end() : tags[1].start()]


def _end_of_last(pattern: re.Pattern[str], text: str) -> int:
    """Return where the last match ends; 0 without one."""
    end = 0
    for match in pattern.finditer(text):  # a list of them could take gigabytes
        end = match.end()
    return end


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
    """Return whether the two are the same text or value, and why the values were not compared, if
    so."""
    if len(answer) > _LONGEST + 10 * len(ground_truth):  # megabytes take seconds to make plain
        return False, f"the answer is not compared by value: {too_much(answer)}"
    answer, ground_truth = in_latex(answer), in_latex(ground_truth)
    answer = _ANNOUNCED.sub("", answer)
    said, truth = _plain(answer), _plain(ground_truth)
    if said == truth:
        return True, ""
    if (letter := _CHOICE.fullmatch(truth)) is not None and _is_choice(ground_truth):
        return _chosen(said) == letter[1].lower(), ""
    if _WORDS.fullmatch(truth) and not _PRODUCT.fullmatch(truth):
        return _folded(answer) == _folded(ground_truth), ""
    if (time := _time(truth)) is not None:
        return _time(said) == time, ""
    answer, truth = (_undelimited(text) for text in (_bare(answer), ground_truth))
    if len(answer) <= MAX_CHARACTERS and (sides := sides_of(answer, truth)) is not None:
        if not sides:
            return False, "the equation does not say what the value is"
        answer = sides[-1]
        if not all(_same_value(side, answer)[0] for side in sides[:-1]):
            return False, "the sides of the equation differ"
    if (same := _other_writing(answer)) is not None:
        return all(_same_value(each, truth)[0] for each in same), ""
    return _same_value(answer, truth)


def _bare(answer: str) -> str:
    """Return an answer without Markdown's emphasis, the stop at its end, and a group that is all
    of it."""
    bare = answer.strip("*_` \n").rstrip(".,;:")
    whole = GROUP.fullmatch(bare)
    return bare if whole is None else whole[1].strip()


def _other_writing(answer: str) -> list[str] | None:
    """Return the two writings of an answer that gives its value twice: 12 (one dozen), 1/2 or .5.
    None for others, of which sets of values are."""
    text = re.sub(rf"{UPRIGHT}\{{\s*(or|\([^(){{}}]*\))\s*\}}", r" \1 ", answer)
    text = re.sub(rf"({UPRIGHT}\{{[^(){{}}]*)(\([^(){{}}]*\))\s*\}}", r"\1} \2", text)
    either = text.split(" or ")
    if len(either) == 2 and all(any(map(str.isdigit, each)) for each in either):
        return either if _same_value(*either)[0] else None
    found = _REMARK.fullmatch(text)
    if found is None or not _same_value(found[2], found[1])[0]:
        return None
    return [found[1], found[2]]


def _same_value(answer: str, truth: str) -> tuple[bool, str]:
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
    from rlcore.rewards.math_value import same_value

    return same_value(expected, given, factor), ""


def _ratio(text: str) -> list[Fraction]:
    """Return the terms of a ratio, as 6:8, in parts of the first one; [] for other texts."""
    terms = [number_in(term) for term in text.split(":")]
    worth = [term.worth for term in terms if term is not None]
    if len(terms) < 2 or len(worth) < len(terms) or not worth[0]:
        return []
    return [each / worth[0] for each in worth]


def _words_in(text: str) -> set[str]:
    """Return what stands in upright groups, in lower case."""
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


def _folded(text: str) -> str:
    """Return words without case, fonts, the stop at their end, the article before them."""
    words = " ".join(_undecorated(text).split()).casefold()
    words = _ARTICLE.sub("", words)
    return _SAME_WORDS.get(words, words).replace(" ", "")


def _chosen(said: str) -> str | None:
    """Return the choice that an answer names, alone or with the number it stands for."""
    if (alone := _CHOICE.fullmatch(said)) is not None:
        return alone[1].lower()
    both = _CHOICE_AND_VALUE.fullmatch(said)
    if both is None or number_in(both[3]) is None:
        return None
    return (both[1] or both[2]).lower()


def _is_choice(ground_truth: str) -> bool:
    """Whether a ground truth of one letter is a choice, (A) or A, and no variable."""
    return re.search("[A-J]", ground_truth) is not None or "(" in ground_truth


def _undelimited(text: str) -> str:
    """Return ``text`` without the signs that begin and end a formula."""
    text = text.strip()
    for begin, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inner = text[len(begin) : -len(end)]
        if (
            text.startswith(begin)
            and text.endswith(end)
            and inner
            and "$" not in inner.replace(r"\$", "")
        ):
            return inner.strip()
    return text


def _unwrapped(group: re.Match[str]) -> str:
    """Return what stands in an upright group; the group where digits would join others."""
    joins = group[1][:1] in "0123456789." and group.string[: group.start()][-1:].isdigit()
    return group[0] if joins and group[1] else group[1]


def _undecorated(text: str) -> str:
    """Return ``text`` without fonts, dollar signs, Markdown's emphasis and the full stop at its
    end."""
    bare = _DECORATION.sub(" ", GROUP.sub(_unwrapped, text))
    return bare.strip(" \n\t*_`").rstrip(".").strip("*_` ")


def _plain(text: str) -> str:
    """Return ``text`` without spaces but those between digits, fonts, dollar signs, thousands
    commas, Markdown's emphasis, the full stop at its end, and without case where it is words."""
    bare = _undecorated(text)
    bare = re.sub(r"\\[dtc]frac", r"\\frac", bare)
    bare = re.sub(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))", "", bare)
    bare = re.sub(r"\s+", " ", bare)
    return re.sub(r"(?<!\d) | (?!\d)", "", bare)
