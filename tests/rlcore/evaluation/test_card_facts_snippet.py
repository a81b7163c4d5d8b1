"""The card's snippet, run as a reader would paste it."""

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from rlcore.evaluation.card_facts import choose_example, render_snippet
from rlcore.evaluation.export import export_model
from rlcore.models.base import load_pretrained
from schemas.table_list import MESSAGES
from schemas.tables import COMPLETIONS
from tests.rlcore.evaluation.cards import card, policy
from tests.rlcore.evaluation.snippets import run_snippet

HOSTILE = "two\nlines, \"both\" 'quotes', {braces}, \\n, \u2028, 🙂 and\n```\nimport os\n```\n"


def greedy(directory: Path, messages: list[dict[str, str]], length: int) -> str:
    """Return what an argmax per token says, up to the tokenizer's end token."""
    model, tokenizer = load_pretrained(directory)
    ids: Any = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    answer: list[int] = []
    with torch.no_grad():
        while len(answer) < length and tokenizer.eos_token_id not in answer:
            logits = model(torch.tensor([ids + answer])).logits
            answer.append(int(logits[0, -1].argmax()))
    return str(tokenizer.decode(answer, skip_special_tokens=True))


def test_it_answers_as_the_evaluation_did_whatever_the_models_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many models ship sampling and a repetition penalty, which the evaluation leaves out."""
    source = policy(tmp_path / "policy")
    own = json.loads((source / "generation_config.json").read_text())
    own |= {"do_sample": True, "temperature": 5.0, "repetition_penalty": 9.0}
    (source / "generation_config.json").write_text(json.dumps(own))
    messages = [{"role": "system", "content": "brief"}, {"role": "user", "content": HOSTILE}]
    expected = greedy(source, messages, 12)
    code = render_snippet(messages, expected, max_new_tokens=12)
    export_model(source, tmp_path / "out", dtype=None, card=card(snippet=code))
    assert run_snippet(tmp_path / "out", monkeypatch) == expected
    assert f"# The evaluation recorded: {expected!r}\n" in code


def test_code_of_the_model_is_run_only_where_the_recipe_runs_it() -> None:
    messages = [{"role": "user", "content": "x"}]
    assert "trust_remote_code" not in render_snippet(messages, "y", max_new_tokens=4)
    trusting = render_snippet(messages, "y", max_new_tokens=4, trust_remote_code=True)
    assert len(re.findall(r"trust_remote_code=True\)", trusting)) == 2


def completion(uid: str, prompt: str, outcome: str = "ok", **changes: Any) -> dict[str, Any]:
    row = {
        "checkpoint": "rl",
        "uid": uid,
        "data_source": "s",
        "subset": "test",
        "mode": "greedy",
        "sample": 0,
        "prompt": prompt,
        "response": f"answer to {uid}",
        "ground_truth": "7",
        "outcome": outcome,
        "score": None if outcome == "aborted" else float(outcome == "ok"),
        "answer": None,
        "finish_reason": "abort" if outcome == "aborted" else "stop",
        "num_tokens": 3,
        "turns": [],
        "valid_actions": [True],
    }
    return row | changes


def chosen(*rows: dict[str, Any]) -> tuple[list[dict[str, str]], str] | None:
    schema = {name: column.dtype.type for name, column in COMPLETIONS.columns.items()}
    messages = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    prompts = pl.DataFrame(
        {"uid": [row["uid"] for row in rows], "prompt": pl.Series(messages, dtype=MESSAGES)}
    )
    frame = pl.DataFrame(list(rows), schema=schema)
    return choose_example(frame, prompts.unique("uid"), "rl")


def test_the_example_is_the_shortest_right_answer_of_this_model() -> None:
    right = completion("c", "a longer prompt")
    rows = [
        completion("a", "short", "wrong"),
        completion("b", "x", checkpoint="sft"),
        completion("d", "y", mode="sampled"),
        completion("e", "a very much longer prompt"),
        right,
    ]
    expected = [{"role": "user", "content": "a longer prompt"}], "answer to c"
    assert chosen(*rows) == expected
    assert chosen(*rows[::-1]) == expected, "the order of the rows decides"


def test_a_model_without_a_right_answer_shows_what_it_says() -> None:
    example = chosen(completion("a", "longer", "wrong"), completion("b", "x", "aborted"))
    assert example is not None
    assert example[1] == "answer to a"


def test_without_an_answer_there_is_no_example() -> None:
    assert chosen(completion("b", "x", "aborted"), completion("c", "x", checkpoint="sft")) is None
