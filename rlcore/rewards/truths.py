"""Whether the ground truths of a dataset are what the built-in reward functions compare with."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rlcore.rewards import arithmetic, code, gsm8k, instructions, math_answer
from schemas.errors import UserError
from schemas.rl import RewardFunction

# Name of a function -> what raises UserError for a ground truth that it cannot read, given its
# options. All others of ours need none.
READERS: dict[str, Callable[..., None]] = {
    "arithmetic": arithmetic.check_truth,
    "code": code.check_truth,
    "gsm8k": gsm8k.check_truth,
    "instructions": instructions.check_truth,
    "math": math_answer.check_truth,
}
# Names that people give a column of ground truths.
USUAL = ("answer", "solution", "target", "label", "output", "final_answer", "expected", "gold")


class Truth(NamedTuple):
    """What a prompt is scored by. ``where``: its file and row; ``extra_info``: JSON."""

    where: str
    data_source: str
    style: str
    ground_truth: str | None
    extra_info: str


def check_truths(truths: Iterable[Truth], functions: Sequence[RewardFunction]) -> None:
    """Raise UserError for the first prompt that a built-in function with a weight cannot score by
    its ground truth, and for a function of weight 0 that can score none of its prompts."""
    rows = list(truths)
    for index, function in enumerate(functions):
        read = READERS.get(function.name)
        own = [row for row in rows if read and function.scores(row.data_source, row.style)]
        bad = [(row, why) for row in own if (why := _problem(row, function, read))]
        if not bad or (not function.weight and len(bad) < len(own)):
            continue
        row, why = bad[0]
        raise UserError(
            f"{row.where}: reward.functions[{index}] = '{function.name}' cannot score it, since"
            f" {why} ({len(bad):,} of {len(own):,} prompts); {_remedy(row)}"
        )


def _problem(row: Truth, function: RewardFunction, read: Callable[..., None] | None) -> str:
    """Return why ``function`` cannot score ``row``, "" when it can."""
    if row.ground_truth is None:
        return "it has no ground truth"
    try:
        if read is not None:
            read(row.ground_truth, **function.options)
    except UserError as error:
        return str(error)
    return ""


def _remedy(row: Truth) -> str:
    if row.ground_truth is not None:
        return "correct it, leave such rows out by data.filters, or name another function"
    columns = json.loads(row.extra_info)
    found = next((name for name in columns if name.lower() in USUAL), None)
    if found is not None:
        return f"name its column on the source, columns: {{ground_truth: {found}}}"
    return "add a column ground_truth, or name a function that needs none"
