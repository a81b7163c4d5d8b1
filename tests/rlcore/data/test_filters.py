"""Rows the recipe does not want are dropped one by one, each with its reason."""

from typing import Any

import pytest

from rlcore.data.filters import (
    apply_filters,
    fit_demonstrations,
    fit_prompts,
    special_token_rejects,
)
from rlcore.data.rows import Row
from rlcore.models.chat import encode_prompts
from rlcore.models.tokenizer import EOS, train_tokenizer
from schemas.data import DataSection, FileSource
from schemas.errors import UserError

LONG = " ".join(f"w{n}" for n in range(60))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["Tom has 12 eggs. 12+30=42", LONG] * 10, 300)


def row(text: str, index: int = 0, answer: str = "", **fields: Any) -> Row:
    solution = [{"role": "assistant", "content": answer}] if answer else []
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    return Row("rows.jsonl", index, "train", "train", "sums", prompt, solution, **fields)


def data(**fields: Any) -> DataSection:
    sources = (FileSource(path="rows.jsonl"),)
    return DataSection(sources=sources, deduplicate="off", **fields)


def test_a_row_must_meet_every_condition_and_is_rejected_by_the_first_it_fails() -> None:
    rows = [row("a", i, ground_truth=truth) for i, truth in enumerate(["1", "2", "3", None])]
    kept, rejects = apply_filters(rows, ["ground_truth <> '1'", "ground_truth < '3'"])
    assert [row.index for row in kept] == [1]
    assert [(r.row, r.reason, r.detail) for r in rejects] == [
        (0, "filter", "data.filters: ground_truth <> '1'"),
        (3, "filter", "data.filters: ground_truth <> '1'"),
        (2, "filter", "data.filters: ground_truth < '3'"),
    ]


def test_a_condition_sees_messages_and_extra_info() -> None:
    rows = [row("a", 0, extra_info='{"level": 5}'), row("bbb", 1, extra_info='{"level": 1}')]
    for condition in ("len(prompt[2].content) = 1", "extra_info->>'$.level' = '5'"):
        assert [row.index for row in apply_filters(rows, [condition])[0]] == [0], condition


def test_without_conditions_every_row_stays() -> None:
    rows = [row("a")]
    assert apply_filters(rows, []) == (rows, [])


def test_a_condition_that_is_none_is_named() -> None:
    with pytest.raises(UserError, match=r"data\.filters = 'levle = 5' is no SQL condition"):
        apply_filters([row("a")], ["levle = 5"])


def test_a_prompt_may_be_as_long_as_allowed_and_no_longer(tokenizer: Any) -> None:
    rows = [row("short", 0), row(LONG, 1)]
    (ids,) = encode_prompts(tokenizer, [rows[1].prompt])
    assert isinstance(ids, list)
    kept, rejects = fit_prompts(tokenizer, rows, data(max_prompt_tokens=len(ids)))
    assert ([row.index for row, _ in kept], rejects) == ([0, 1], [])
    kept, rejects = fit_prompts(tokenizer, rows, data(max_prompt_tokens=len(ids) - 1))
    assert [row.index for row, _ in kept] == [0]
    assert (rejects[0].reason, rejects[0].detail) == (
        "over_length",
        f"{len(ids)} tokens, over data.max_prompt_tokens = {len(ids) - 1}",
    )


def test_a_long_prompt_can_stop_the_run(tokenizer: Any) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl row 4: its prompt has \d+ tokens, over data"):
        fit_prompts(tokenizer, [row(LONG, 4)], data(max_prompt_tokens=20, over_length="error"))


@pytest.mark.parametrize("side", ["left", "middle", "right"])
def test_a_truncated_prompt_keeps_its_other_messages_and_its_turn(
    tokenizer: Any, side: str
) -> None:
    short = data(max_prompt_tokens=30, over_length=f"truncate_{side}")
    ((cut, ids),), rejects = fit_prompts(tokenizer, [row(LONG)], short)
    text = cut.prompt[1]["content"]
    assert rejects == []
    assert 20 < len(ids) <= 30
    assert encode_prompts(tokenizer, [cut.prompt]) == [ids]
    assert cut.prompt[0] == {"role": "system", "content": "Be brief."}
    assert text.startswith("w0 ") == (side != "left")
    assert text.endswith("w59") == (side != "right")


def test_a_prompt_with_no_text_to_give_is_dropped_not_emptied(tokenizer: Any) -> None:
    short = data(max_prompt_tokens=3, over_length="truncate_left")
    kept, rejects = fit_prompts(tokenizer, [row("one two three")], short)
    assert (kept, [reject.reason for reject in rejects]) == ([], ["over_length"])


def test_a_demonstration_is_never_cut(tokenizer: Any) -> None:
    """Without its end it would teach the model not to stop."""
    rows = [row("a", 0, answer="42"), row("a", 1, answer=LONG)]
    kept, rejects = fit_demonstrations(tokenizer, rows, max_tokens=40)
    assert [(row.index, tokens.token_ids[-1]) for row, tokens in kept] == [
        (0, tokenizer.eos_token_id)
    ]
    assert (rejects[0].row, rejects[0].reason) == (1, "over_length_demonstration")
    assert rejects[0].detail.endswith("tokens, over sft.max_tokens = 40")
    assert len(fit_demonstrations(tokenizer, rows, max_tokens=None)[0]) == 2


def test_text_that_holds_a_turn_mark_is_rejected(tokenizer: Any) -> None:
    """It would open a turn of its own, in the prompt or in what is learnt."""
    rows = [row("fine", 0), row(f"x{EOS}y", 1), row("q", 2, answer="<|user|>42")]
    kept, rejects = special_token_rejects(tokenizer, rows)
    assert [row.index for row in kept] == [0]
    assert [(r.row, r.reason, r.detail) for r in rejects] == [
        (1, "special_token", f"the text holds the token '{EOS}'"),
        (2, "special_token", "the text holds the token '<|user|>'"),
    ]
