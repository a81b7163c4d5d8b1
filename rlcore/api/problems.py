"""Mathematical problems with answers -> prompts, and the reward that checks the answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.errors import UserError, did_you_mean

# Qwen's and most reasoning models' wording.
MATH_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
# Weight 2 with an offset of -1: right +1, wrong -1, as in the DAPO paper.
MATH_REWARD = {"name": "math", "weight": 2.0}
KEYS = ("problem", "answer")


def math_prompts(problems: Sequence[Mapping[str, Any]], instruction: str) -> list[dict[str, Any]]:
    """Return a prompt with ground truth per row of ``problem`` and ``answer`` (text or number).

    Raises UserError for a row that lacks one of them: an empty answer would fit any response.
    """
    if not isinstance(problems, Sequence) or not problems:
        raise UserError("math_problems is empty; give rows of 'problem' and 'answer'")
    prompts = []
    for index, row in enumerate(problems):
        for key in KEYS:
            value = row.get(key) if isinstance(row, Mapping) else None
            if value is None or not str(value).strip():
                near = "" if not isinstance(row, Mapping) else did_you_mean_of(key, row)
                raise UserError(
                    f"math_problems[{index}] has no {key}{near}; each row needs"
                    f" {' and '.join(KEYS)}"
                )
        text = f"{row['problem']} {instruction}".rstrip()
        prompts.append({"prompt": text, "ground_truth": str(row["answer"]).strip()})
    return prompts


def did_you_mean_of(key: str, row: Mapping[str, Any]) -> str:
    """Return "did you mean" with the nearest key of ``row``, or ""."""
    return did_you_mean(key, [str(name) for name in row if name not in KEYS])
