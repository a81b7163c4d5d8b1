"""A row of preferences is read as what its authors meant by it, or refused with the reason."""

import json
from typing import Any

import pytest

from rlcore.data.rows import BadRow
from rlcore.supervised.preference_files import EqualResponses, ranked_row

ASKED = {"role": "user", "content": "1+1?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


PAIR = [("2", 1), ("3", 2)]
B, C = said("b"), {"rejected": "c"}
PARTS = [{"role": "assistant", "content": [{"type": "text", "text": "2"}]}]
FORMS: dict[str, tuple[dict[str, Any], list[dict[str, str]]]] = {
    "TRL, text": ({"prompt": "1+1?", "chosen": "2", "rejected": "3"}, [ASKED]),
    "TRL, messages": (
        {"prompt": [ASKED], "chosen": [said("2")], "rejected": [said("3")]},
        [ASKED],
    ),
    "TRL, prompt in both": (
        {"chosen": [ASKED, said("2")], "rejected": [ASKED, said("3")]},
        [ASKED],
    ),
    "UltraFeedback": (
        {
            "prompt": "1+1?",
            "prompt_id": "f3",
            "chosen": [ASKED, said("2")],
            "rejected": [ASKED, said("3")],
            "messages": [ASKED, said("2")],
            "score_chosen": 8.0,
            "score_rejected": 7.5,
        },
        [ASKED],
    ),
    "UltraFeedback with a system's turn": (
        {
            "prompt": "1+1?\n",
            "chosen": [SYSTEM, ASKED, said("2")],
            "rejected": [SYSTEM, ASKED, said("3")],
        },
        [SYSTEM, ASKED],
    ),
    "whole conversations beside a prompt of messages": (
        {"prompt": [ASKED], "chosen": [ASKED, said("2")], "rejected": [ASKED, said("3")]},
        [ASKED],
    ),
    "hh": (
        {
            "chosen": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: 1+1?\n\nAssistant: 2",
            "rejected": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: 1+1?\n\nAssistant: 3",
        },
        [{"role": "user", "content": "Hi"}, said("Hello."), ASKED],
    ),
    "hh with the prompt apart": (
        {"prompt": "\n\nHuman: 1+1?\n\nAssistant:", "chosen": " 2", "rejected": " 3"},
        [ASKED],
    ),
    "hh with the prompt apart, trimmed": (
        {"prompt": "Human: 1+1?\n\nAssistant:", "chosen": "2", "rejected": "3"},
        [ASKED],
    ),
    "parts, and a developer": (
        {
            "prompt": [{**SYSTEM, "role": "developer"}, ASKED],
            "chosen": PARTS,
            "rejected": "3",
        },
        [SYSTEM, ASKED],
    ),
    "conversations written as text": (
        {"prompt": str([ASKED]), "chosen": json.dumps(PARTS), "rejected": "3"},
        [ASKED],
    ),
    "a system's column": (
        {"system": "Be brief.", "prompt": "1+1?", "chosen": "2", "rejected": "3", "tools": "[]"},
        [SYSTEM, ASKED],
    ),
    "a system's column beside its turn": (
        {"system": "x", "prompt": [SYSTEM, ASKED], "chosen": "2", "rejected": "3"},
        [SYSTEM, ASKED],
    ),
    "an empty system's column": (
        {"system": "", "prompt": "1+1?", "responses": ["2", "3"], "ranks": [1, 2]},
        [ASKED],
    ),
    "ranked": ({"prompt": "1+1?", "responses": ["2", "3"], "ranks": [1, 2]}, [ASKED]),
    "ranked by floats, as a column with gaps has them": (
        {"prompt": "1+1?", "responses": ["2", "3"], "ranks": [1.0, 2.0]},
        [ASKED],
    ),
}
EQUAL: dict[str, dict[str, Any]] = {
    "text": {"prompt": "a", "chosen": "b", "rejected": "b"},
    "conversations": {"chosen": [ASKED, said("2")], "rejected": [ASKED, said("2")]},
    "hh": {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: b"},
    "scores": {
        "prompt": "a",
        "chosen": "b",
        "rejected": "c",
        "score_chosen": 7.0,
        "score_rejected": 7.0,
    },
    "ranks": {"prompt": "a", "responses": ["b", "c"], "ranks": [2, 2]},
}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no pair": ({"prompt": "a", "completion": "b"}, "the form must be TRL"),
    "one rank": ({"prompt": "a", "responses": ["b", "c"], "ranks": [1]}, "one rank of 1"),
    "rank 0": ({"prompt": "a", "responses": ["b", "c"], "ranks": [0, 1]}, "one rank of 1"),
    "half a rank": ({"prompt": "a", "responses": ["b", "c"], "ranks": [1, 1.5]}, "one rank of 1"),
    "two ranks": (
        {"prompt": "a", "responses": ["b", "c", "b"], "ranks": [1, 2, 3]},
        "the response 'b' has two ranks",
    ),
    "empty": ({"prompt": "a", "chosen": "b", "rejected": " "}, "one assistant turn that is not"),
    "null": ({"prompt": "a", "chosen": "b", "rejected": None}, "rejected is missing or null"),
    "an image": ({"prompt": "a", "chosen": [{**B, "content": [{"type": "image"}]}], **C}, "image"),
    "reasoning": ({"prompt": "a", "chosen": [{**B, "thinking": "c"}], **C}, "has reasoning_cont"),
    "a conversation cut": (
        {"prompt": "[{'role': 'user', 'content': 'a", "chosen": "b", **C},
        "written as text, and",
    ),
    "half a character": ({"prompt": "a", "chosen": "b\ud83d", **C}, "half of a character"),
    "null content": (
        {
            "prompt": "a",
            "chosen": [said("b")],
            "rejected": [{"role": "assistant", "content": None}],
        },
        "one assistant turn that is not",
    ),
    "no prompt": (
        {"system": "a", "question": "a", "chosen": "b", "rejected": "c"},
        "it has no prompt, but system, question, chosen, rejected; rename one to prompt",
    ),
    "an empty prompt": ({"prompt": [], "chosen": "b", **C}, "a prompt ends with a user's turn"),
    "tools": ({"prompt": "a", "chosen": "b", **C, "tools": [{"name": "f"}]}, "it has tools, which"),
    "a system's turn that is none": ({"prompt": "a", "chosen": "b", **C, "system": 3}, "neither"),
    "another prompt": (
        {"prompt": "2+2?", "chosen": [ASKED, said("2")], "rejected": [ASKED, said("3")]},
        "does not begin with the prompt",
    ),
    "two conversations": (
        {
            "chosen": [ASKED, said("2"), ASKED, said("2")],
            "rejected": [ASKED, said("3"), ASKED, said("3")],
        },
        "differ before their last turn",
    ),
    "a dialogue that the user ends": (
        {
            "chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c",
            "rejected": "\n\nHuman: a\n\nAssistant: d",
        },
        "differ before their last turn",
    ),
    "a number": ({"prompt": "a", "chosen": 2, "rejected": 3}, "neither text nor messages"),
    "no message": ({"prompt": "a", "chosen": [], "rejected": [said("b")]}, "has no message"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_read(form: str) -> None:
    row, prompt = FORMS[form]
    asked, responses = ranked_row(row)
    assert asked == prompt
    assert [(text.strip(), rank) for text, rank in responses] == PAIR


@pytest.mark.parametrize("case", EQUAL)
def test_responses_that_are_equally_good_are_told(case: str) -> None:
    with pytest.raises(EqualResponses):
        ranked_row(EQUAL[case])


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_says_why(case: str) -> None:
    row, why = BAD[case]
    with pytest.raises(BadRow, match=why):
        ranked_row(row)


def test_a_text_that_speaks_of_humans_is_no_dialogue() -> None:
    row = {"prompt": "Human: what is it?", "chosen": "A being.\n\nHuman: or", "rejected": "x"}
    prompt, responses = ranked_row(row)
    assert prompt == [{"role": "user", "content": "Human: what is it?"}]
    assert responses[0] == ("A being.\n\nHuman: or", 1)
