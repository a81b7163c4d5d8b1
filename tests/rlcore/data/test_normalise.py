"""Every accepted form becomes the same rows; every bad row is reported with its reason, none is
lost."""

import json
from typing import Any

import pytest

from rlcore.data.normalise import normalise
from rlcore.data.rows import RawTable, Row
from rlcore.data.write import rejects_table
from schemas.errors import UserError

USER = {"role": "user", "content": "What is 2 + 3?"}
ASSISTANT = {"role": "assistant", "content": "#### 5"}
SYSTEM = {"role": "system", "content": "Be brief."}
VERL = {
    "data_source": "sums",
    "prompt": [USER],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "5"},
    "extra_info": {"index": 7},
}


def table(*rows: dict[str, Any], **fields: Any) -> RawTable:
    return RawTable("rows.jsonl", "train", list(rows), **fields)


def one(row: dict[str, Any], **fields: Any) -> Row:
    rows, rejects = normalise(table(row, **fields))
    assert not rejects, rejects
    return rows[0]


def test_verl_rows_keep_what_the_reward_needs() -> None:
    row = one({**VERL, "difficulty": 3})
    assert (row.prompt, row.ground_truth, row.data_source) == ([USER], "5", "sums")
    assert (row.ability, row.reward_style, row.scored, row.solution) == ("math", "rule", True, [])
    assert json.loads(row.extra_info) == {"index": 7, "difficulty": 3}


@pytest.mark.parametrize("style", [None, "rule-lighteval/MATH_v2"])
def test_a_style_that_names_its_rule_is_a_rule(style: str | None) -> None:
    """That of DAPO-Math-17k, which all its rows have."""
    row = one({**VERL, "reward_model": {"style": style, "ground_truth": "5"}})
    assert (row.reward_style, row.ground_truth) == ("rule", "5")


def test_trl_prompt_and_completion_as_text_or_messages_are_one_demonstration() -> None:
    text = one({"prompt": USER["content"], "completion": ASSISTANT["content"]})
    chat = one({"prompt": [USER], "completion": [ASSISTANT]})
    assert text.messages == chat.messages == [USER, ASSISTANT]
    assert not text.scored, "without a ground truth there is nothing to reward it by"
    scored = one({"prompt": "2 + 3?", "completion": "#### 5", "ground_truth": 5})
    assert scored.scored
    assert scored.ground_truth == "5"


@pytest.mark.parametrize("column", ["completion", "ground_truth", "solution"])
def test_a_data_source_beside_columns_of_trl_leaves_them_of_trl(column: str) -> None:
    """Taken for verl's, the completion or the answer would be lost among ``extra_info``."""
    row = one({"prompt": [USER], column: "5", "data_source": "sums"})
    assert row.data_source == "sums"
    truth, solved = (None, True) if column == "completion" else ("5", False)
    assert (row.ground_truth, bool(row.solution), row.extra_info) == (truth, solved, "{}")


def test_messages_are_a_conversation_whose_last_answer_is_learnt() -> None:
    chat = [SYSTEM, USER, ASSISTANT, USER, ASSISTANT]
    row = one({"messages": chat})
    assert (row.prompt, row.solution) == (chat[:-1], chat[-1:])


@pytest.mark.parametrize(
    ("beside", "columns"),
    [
        ({"prompt_id": "1"}, {}),
        ({"solution": "5"}, {"messages": "messages"}),
        ({"task": "sums"}, {"data_source": "task"}),
    ],
)
def test_a_prompt_beside_messages_is_their_begin(
    beside: dict[str, str], columns: dict[str, str]
) -> None:
    """H4's form (no_robots, ultrachat_200k): all demonstrations were lost."""
    chat = {"prompt": USER["content"], "messages": [USER, ASSISTANT]}
    row = one({**chat, **beside}, columns=columns)
    assert (row.prompt, row.solution) == ([USER], [ASSISTANT])
    assert json.loads(row.extra_info) == ({} if columns else beside)


@pytest.mark.parametrize(
    ("beside", "columns", "truth"),
    [
        ({"ground_truth": "5"}, {}, "5"),
        ({"chosen": "5", "rejected": "6"}, {}, None),
        ({}, {"prompt": "prompt"}, None),
        ({"reward_model": {"style": "rule", "ground_truth": "5"}, "data_source": "s"}, {}, "5"),
    ],
)
def test_a_prompt_beside_messages_is_asked_where_columns_say_so(
    beside: dict[str, Any], columns: dict[str, str], truth: str | None
) -> None:
    row = one({"prompt": "2 + 3?", "messages": [USER, ASSISTANT], **beside}, columns=columns)
    assert (row.prompt_text, row.solution, row.ground_truth) == ("2 + 3?", [], truth)


def test_sharegpt_and_its_columns_are_a_conversation() -> None:
    said = [{"from": "human", "value": USER["content"]}, {"from": "gpt", "value": "#### 5"}]
    row = one({"conversations": said, "system": SYSTEM["content"], "id": "a"})
    assert row.messages == [SYSTEM, USER, ASSISTANT]
    assert row.extra_info == '{"id": "a"}'
    both = one({"conversations": [{"from": "system", "value": "Own."}, *said], "system": "Other."})
    assert [message["content"] for message in both.prompt] == ["Own.", USER["content"]]
    scored = one({"conversations": [USER, ASSISTANT], "ground_truth": "5"})
    assert (scored.prompt, scored.solution, scored.ground_truth) == ([USER], [ASSISTANT], "5")


def test_alpaca_is_asked_with_its_input() -> None:
    row = one({"instruction": "Add.", "input": "2 and 3", "output": "5", "text": "Below is"})
    assert row.messages == [
        {"role": "user", "content": "Add.\n\n2 and 3"},
        {"role": "assistant", "content": "5"},
    ]
    assert (row.scored, row.extra_info) == (False, '{"text": "Below is"}')
    chat = {"instruction": USER["content"], "input": "", "output": 5, "ground_truth": "5"}
    row = one({**chat, "system": "Be brief.", "history": [["Hi", "Hello"]]})
    assert [(m["role"], m["content"]) for m in row.messages] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", USER["content"]),
        ("assistant", "5"),
    ]
    assert row.scored
    mapped = {"prompt": "instruction", "ground_truth": "output"}
    row = one({"instruction": "2 + 3?", "output": "5"}, columns=mapped)
    assert (row.ground_truth, row.solution) == ("5", [])


@pytest.mark.parametrize("column", ["prompt", "ground_truth", "note", "tools", "data_source"])
def test_half_of_a_character_rejects_its_row(column: str) -> None:
    """JSON can write it and Parquet cannot: the run ended in a traceback."""
    half = json.loads('"a\\ud83d"')
    row = {"prompt": "2 + 3?", "ground_truth": "5", "data_source": "sums"}
    value = [{"name": half}] if column == "tools" else half
    (good,), (reject,) = normalise(table({**row, "note": "\U0001f600"}, {**row, column: value}))
    assert json.loads(good.extra_info) == {"note": "\U0001f600"}
    assert reject.reason == "not_unicode"
    assert "half of a character" in reject.detail
    assert rejects_table([reject])["content"][0].encode()


def test_gsm8k_truth_stands_after_the_last_mark_without_commas() -> None:
    row = one(
        {"question": "How far?", "answer": "A #### 3 typo\n#### -1,200"},
        form="gsm8k",
        data_source="openai/gsm8k",
        instruction="Think.",
    )
    assert row.ground_truth == "-1200"
    assert row.prompt == [{"role": "user", "content": "How far? Think."}]
    assert row.solution[0]["content"].endswith("#### -1,200")


@pytest.mark.parametrize(("answer", "text"), [(40, "40"), (-1.5, "-1.5")])
def test_an_answer_that_is_a_number_is_learnt_as_its_text(answer: float, text: str) -> None:
    """What reads a CSV makes numbers of a column of answers."""
    row = one({"prompt": "38 + 2?", "completion": answer, "ground_truth": answer})
    assert row.solution == [{"role": "assistant", "content": text}]
    assert row.ground_truth == text


def test_maths_truth_is_the_last_box_of_the_solution() -> None:
    problem = {
        "problem": "How far?",
        "solution": r"$\boxed{1}$, or rather $\boxed{\frac{\sqrt{3}}{2}}$.",
        "level": "Level 5",
        "type": "Geometry",
    }
    row = one(problem, form="math", data_source="MATH", instruction="Think.")
    assert row.ground_truth == r"\frac{\sqrt{3}}{2}"
    assert row.prompt == [{"role": "user", "content": "How far? Think."}]
    assert row.solution == [{"role": "assistant", "content": problem["solution"]}]
    assert json.loads(row.extra_info) == {"split": "train", "index": 0, **problem}
    assert (row.ability, row.reward_style) == ("math", "rule")


@pytest.mark.parametrize(
    "solution", ["It is 5.", r"\boxed{5", r"\boxed{}", r"\boxed{ }", r"\boxed"]
)
def test_math_without_a_boxed_answer_is_rejected(solution: str) -> None:
    """An empty truth would be contained in every response."""
    good = {"problem": "How far?", "solution": r"\boxed{5}"}
    rows, rejects = normalise(table(good, {**good, "solution": solution}, form="math"))
    assert [row.ground_truth for row in rows] == ["5"]
    ((_, detail, reason),) = [(r.row, r.detail, r.reason) for r in rejects]
    assert reason == "no_final_answer"
    assert "no complete" in detail


@pytest.mark.parametrize("answer", ["1000", "-5", "5.0", "", "seven", None, 7.5, "٧", True])
def test_aime_takes_integers_below_a_thousand(answer: object) -> None:
    rows, rejects = normalise(
        table({"problem": "?", "answer": 0}, {"problem": "?", "answer": answer}, form="aime")
    )
    assert [row.ground_truth for row in rows] == ["0"]
    assert [reject.reason for reject in rejects] == ["no_final_answer"]


@pytest.mark.parametrize(
    ("row", "fields", "name"),
    [
        (VERL, {"data_source": "mine", "fallback": "hub"}, "mine"),
        (VERL, {"fallback": "hub"}, "sums"),
        ({**VERL, "data_source": None}, {"fallback": "hub"}, "hub"),
        ({**VERL, "data_source": 3}, {"fallback": "hub"}, "hub"),
        ({"prompt": "?", "task": "a"}, {"fallback": "h", "columns": {"data_source": "task"}}, "a"),
        ({"prompt": "?"}, {"fallback": "hub"}, "hub"),
        ({"prompt": "?"}, {}, "rows.jsonl"),
    ],
)
def test_a_data_source_is_the_recipes_then_the_rows_then_the_hubs(
    row: dict[str, Any], fields: dict[str, Any], name: str
) -> None:
    assert one(row, **fields).data_source == name


def test_unknown_columns_are_named_beside_the_accepted_forms() -> None:
    with pytest.raises(
        UserError,
        match=r"rows\.jsonl has columns query, reply, which are of no accepted form: verl \(prompt,"
        r".*TRL \(prompt, completion\).*messages.*rename the columns",
    ):
        normalise(table({"query": "2 + 3?", "reply": "5"}))


def test_an_empty_file_is_said_to_be_empty() -> None:
    with pytest.raises(
        UserError, match=r"rows\.jsonl holds no rows; give a file with at least one"
    ):
        normalise(table())


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        ({**VERL, "prompt": []}, "empty_prompt", "no message to answer"),
        ({**VERL, "prompt": None}, "empty_prompt", "prompt"),
        ({**VERL, "prompt": [{**USER, "content": " "}]}, "empty_prompt", "user message is empty"),
        ({**VERL, "prompt": [USER, ASSISTANT, ASSISTANT, USER]}, "roles", "follow one another"),
        ({**VERL, "prompt": [USER, ASSISTANT]}, "roles", "user, assistant: the prompt must end"),
        ({**VERL, "prompt": [ASSISTANT, USER]}, "roles", "assistant, user: the first after"),
        ({**VERL, "prompt": [USER, SYSTEM]}, "roles", "user, system: 'system' is not one of"),
        ({"prompt": [USER], "completion": [USER, ASSISTANT]}, "roles", "completion must begin"),
        ({"prompt": "2 + 3?", "completion": "5", "tools": "[{"}, "wrong_type", "no JSON text"),
        ({"prompt": "2 + 3?", "completion": "5", "tools": [3]}, "wrong_type", "not a list of JSON"),
        ({**VERL, "prompt": [{"role": "user", "content": ["x"]}]}, "wrong_type", "strings"),
        ({**VERL, "prompt": 3}, "wrong_type", "prompt is 3"),
        ({"prompt": "2 + 3?", "completion": True}, "wrong_type", "completion is True"),
        ({**VERL, "reward_model": {"style": "rule"}}, "null_ground_truth", "needs a ground truth"),
        ({**VERL, "reward_model": "rule"}, "wrong_type", "reward_model is not an object"),
        ({**VERL, "reward_model": {"style": "vibes"}}, "reward_style", "'vibes' is none of rule"),
        ({**VERL, "data_source": None}, "no_data_source", "data_source is missing"),
        ({**VERL, "extra_info": "x"}, "wrong_type", "extra_info is not an object"),
        ({**VERL, "images": [{"bytes": "x", "path": None}]}, "content_part", "has images, and"),
        ({"prompt": "2 + 3?", "completion": "5", "image": "1.jpg"}, "content_part", "has image"),
        ({"prompt": "2 + 3?", "completion": "5", "audio": {"path": "a"}}, "content_part", "audio"),
        ({"prompt": "2 + 3?", "completion": " "}, "empty_solution", "assistant message is empty"),
    ],
)
def test_a_bad_row_is_rejected_with_its_reason_and_content(
    row: dict[str, Any], reason: str, detail: str
) -> None:
    """A row that is silently dropped, or silently scored 0, cannot be found again."""
    good = {"prompt": "2 + 3?", "completion": "5"} if "completion" in row else VERL
    rows, (reject,) = normalise(table(good, row))
    assert [r.index for r in rows] == [0]
    assert (reject.source, reject.row, reject.reason) == ("rows.jsonl", 1, reason)
    assert detail in reject.detail
    assert set(json.loads(reject.content)) == set(row)


@pytest.mark.parametrize("empty", [None, "", [], [None], [{"bytes": None, "path": None}]])
def test_an_empty_column_of_images_leaves_a_row_of_text(empty: object) -> None:
    assert one({**VERL, "images": empty}).prompt == [USER]


def test_gsm8k_without_a_final_integer_is_rejected() -> None:
    rows, rejects = normalise(
        table(
            {"question": "How many?", "answer": "five"},
            {"question": "How many?", "answer": "#### 5.5"},
            form="gsm8k",
        )
    )
    assert not rows
    assert [reject.reason for reject in rejects] == ["no_final_answer"] * 2
