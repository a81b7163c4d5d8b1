"""The reward ``instructions``: the share of what a prompt asks of a response's text that it keeps.

``ground_truth`` is a JSON object, of which any of these: ``words`` (each occurs as a whole word, in
any case), ``without`` (none of these does), ``length`` ([fewest, most] words), ``sentences`` (how
many), ``case`` ("lower" or "upper"), ``begins`` and ``ends`` (text), ``json`` (a JSON object with
these keys). Checks of this kind are those of IFEval, arXiv 2311.07911 table 1.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from rlcore.rewards.types import Reward, RewardRow, Scorer
from schemas.errors import UserError, did_you_mean

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_END = re.compile(r"[.!?]+(?=\s|$)")


def scorer() -> Scorer:
    """Return the reward function: kept / asked of the checks, each word of ``words`` and
    ``without`` one of them; right where all are kept. An empty response keeps none."""

    def score(row: RewardRow) -> Reward:
        text = row.response.strip()
        checks = list(_checks(_asked(row.ground_truth)))
        if not text:
            return Reward.no_answer(row)
        broken = [name for name, keeps in checks if not keeps(text)]
        detail = f"not kept: {', '.join(broken)}" if broken else ""
        return Reward.of(row, 1 - len(broken) / len(checks), not broken, detail=detail)

    return score


def check_truth(ground_truth: str) -> None:
    """Raise UserError for a ground truth that holds no checks, or others than there are."""
    list(_checks(_asked(ground_truth)))


def words_in(text: str) -> list[str]:
    """Return the words of ``text`` in lower case; a hyphen or an apostrophe is within a word.

    >>> words_in("It's a well-kept garden.")
    ["it's", 'a', 'well-kept', 'garden']
    """
    return _WORD.findall(text.lower())


def _asked(ground_truth: str | None) -> dict[str, Any]:
    try:
        asked = json.loads(ground_truth or "")
    except ValueError:
        asked = None
    if not isinstance(asked, dict) or not asked:
        raise UserError(
            f"the ground_truth {str(ground_truth)[:80]!r} is no JSON object of checks; write e.g."
            ' {"words": ["river"], "length": [5, 12]}'
        )
    return asked


def _checks(asked: dict[str, Any]) -> Iterator[tuple[str, Callable[[str], bool]]]:
    """Yield each check by its name; raises UserError for one that is none, or has another value."""
    for name, value in asked.items():
        if name not in _KINDS:
            raise UserError(
                f"the ground_truth asks for {name!r}, which the reward 'instructions' does not"
                f" check{did_you_mean(name, _KINDS)}; it checks {', '.join(_KINDS)}"
            )
        is_kind, check = _KINDS[name]
        if not is_kind(value):
            raise UserError(f"the ground_truth asks for {name} = {value!r}, which it cannot be")
        for each in value if name in ("words", "without") else [value]:
            yield f"{name} {each!r}", lambda text, each=each, check=check: check(text, each)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_text, value))


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_count, value))


def _has(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def _in_case(text: str, case: str) -> bool:
    same = text.lower() if case == "lower" else text.upper()
    return text == same and text.lower() != text.upper()


def _json_with(text: str, keys: list[str]) -> bool:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and set(keys) <= set(found)


def _sentences(text: str) -> int:
    """Count what ends in a mark, and what is left behind the last one."""
    return len([part for part in _END.split(text) if part.strip()])


_KINDS: dict[str, tuple[Callable[[Any], bool], Callable[[str, Any], bool]]] = {
    "words": (_texts, _has),
    "without": (_texts, lambda text, word: not _has(text, word)),
    "length": (_range, lambda text, most: most[0] <= len(words_in(text)) <= most[1]),
    "sentences": (_count, lambda text, count: _sentences(text) == count),
    "case": (lambda value: value in ("lower", "upper"), _in_case),
    "begins": (_text, lambda text, start: text.lower().startswith(start.lower())),
    "ends": (_text, lambda text, end: text.endswith(end)),
    "json": (_texts, _json_with),
}
