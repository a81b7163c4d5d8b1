"""Prompts given as Python values -> the Prompts table; mathematical problems as such prompts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from rlcore.data.filters import special_token_rejects, unshown_rejects
from rlcore.data.normalise import normalise
from rlcore.data.rows import RawTable, Reject
from rlcore.data.write import prompts_table
from rlcore.models.chat import Refused, encode_prompts
from schemas.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

SOURCE = "train_prompts"
PROMPT_KEYS = ("prompt", "messages")
# Qwen's and most reasoning models' wording.
MATH_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
# Weight 2 with an offset of -1: right +1, wrong -1, as in the DAPO paper.
MATH_REWARD = {"name": "math", "weight": 2.0}
KEYS = ("problem", "answer")

Prompt = str | Sequence[Mapping[str, str]] | Mapping[str, Any]


def prompts_frame(
    prompts: Sequence[Prompt], tokenizer: "ChatTokenizer", *, max_tokens: int | None
) -> pl.DataFrame:
    """Return the Prompts table of ``prompts``, all in the split "train", in their order.

    A prompt is a text, a list of messages, or a dict with ``prompt`` (either of the two) or
    ``messages``, and perhaps ``ground_truth``, ``data_source`` and ``extra_info``; other keys go to
    extra_info. Token ids are the chat template's, the assistant's turn opened. Raises UserError for
    the first prompt that cannot be used, and for one of more than ``max_tokens`` tokens.
    """
    if isinstance(prompts, str | Mapping) or not prompts:
        raise UserError(
            f"train_prompts is {'empty' if not prompts else 'a single prompt'}; give a list of at"
            " least one prompt"
        )
    raw = [_columns(index, prompt) for index, prompt in enumerate(prompts)]
    rows, rejects = normalise(RawTable(SOURCE, "train", raw))
    _refuse(rejects)
    for check in (special_token_rejects, unshown_rejects):
        rows, rejects = check(tokenizer, rows)
        _refuse(rejects)
    encoded = []
    for row, ids in zip(rows, encode_prompts(tokenizer, [r.prompt for r in rows]), strict=True):
        if isinstance(ids, Refused):
            raise UserError(f"{SOURCE}[{row.index}]: {ids.detail}")
        if max_tokens is not None and len(ids) > max_tokens:
            raise UserError(
                f"{SOURCE}[{row.index}] has {len(ids)} tokens, over max_prompt_length ="
                f" {max_tokens}; shorten it or raise max_prompt_length"
            )
        encoded.append((row, ids))
    return prompts_table(encoded)


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
                others = row if isinstance(row, Mapping) else {}
                near = did_you_mean(key, [str(name) for name in others if name not in KEYS])
                raise UserError(
                    f"math_problems[{index}] has no {key}{near}; each row needs"
                    f" {' and '.join(KEYS)}"
                )
        text = f"{row['problem']} {instruction}".rstrip()
        prompts.append({"prompt": text, "ground_truth": str(row["answer"]).strip()})
    return prompts


def _columns(index: int, prompt: Any) -> dict[str, Any]:
    """Return one prompt as a row in verl's form."""
    if isinstance(prompt, str):
        fields: dict[str, Any] = {"prompt": prompt}
    elif isinstance(prompt, Mapping):
        fields = dict(prompt)
    elif isinstance(prompt, Sequence):
        fields = {"prompt": [dict(message) for message in prompt]}
    else:
        raise UserError(
            f"{SOURCE}[{index}] is {type(prompt).__name__}; give a text, a list of messages or a"
            " dict with 'prompt'"
        )
    given = [key for key in PROMPT_KEYS if key in fields]
    if len(given) != 1:
        near = "".join(did_you_mean(str(key), PROMPT_KEYS) for key in fields) if not given else ""
        raise UserError(
            f"{SOURCE}[{index}] has the keys {', '.join(map(str, fields))} and needs one of"
            f" {', '.join(PROMPT_KEYS)}{near}"
        )
    text = fields.pop(given[0])
    truth = fields.pop("ground_truth", None)
    style = {"style": "model" if truth is None else "rule", "ground_truth": truth}
    return {"data_source": SOURCE, "reward_model": style, "prompt": text, **fields}


def _refuse(rejects: Sequence[Reject]) -> None:
    if rejects:
        first = min(rejects, key=lambda reject: reject.row)
        raise UserError(f"{SOURCE}[{first.row}]: {first.detail}; change or leave out that prompt")
