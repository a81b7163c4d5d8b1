"""Preferences in files become rankings of whole answers, or are refused row by row."""

import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from rlcore.data.split import content_uid
from rlcore.plan import data_size
from rlcore.plan.data_size import check_preferences
from rlcore.recipes.load import load_recipe
from rlcore.supervised.preference_files import SOLUTIONS_FILE, preference_digests, read_preferences
from rlcore.supervised.preferences import encode
from schemas.data import DataSection, FileSource
from schemas.errors import UserError
from schemas.reward_model import FilePreferences, Gsm8kSolutions
from schemas.tables import PREFERENCES
from tests.inputs import GSM8K, ROOT, reads
from tests.rlcore.supervised.responses import solutions, write

DATA = DataSection(sources=(FileSource(path="x.jsonl"),))


def test_model_solutions_become_ranked_answers_in_the_policys_form(tokenizer, tmp_path) -> None:
    """Cut off before 'A: ' is malformed; 'A: 21' is judged as the '#### 21' the policy writes."""
    path = write(tmp_path / SOLUTIONS_FILE, solutions(40))
    section = Gsm8kSolutions(path=str(path), instruction="Answer.")
    table = PREFERENCES.validate(encode(read_preferences(section, DATA).rows, tokenizer).table)
    first = table.filter(pl.col("uid") == table["uid"][0])
    assert Counter(first["level"]) == {"correct": 1, "wrong": 2, "malformed": 1}
    assert "20+1=21\n#### 21" in first["response"].to_list()
    ids, prompt_tokens = first["token_ids"].to_list()[0], first["prompt_tokens"][0]
    assert tokenizer.decode(ids[:prompt_tokens]) == "<|user|>What is 20 + 1? Answer.<|assistant|>"
    assert ids[-1] == tokenizer.eos_token_id
    splits = dict(table.group_by("uid").agg(pl.col("split").n_unique()).iter_rows())
    assert set(splits.values()) == {1}
    assert 2 <= table.filter(pl.col("split") == "validation")["uid"].n_unique() <= 15
    prompt = [{"role": "user", "content": "What is 20 + 1? Answer."}]
    assert table["uid"][0] == content_uid("openai/gsm8k", prompt, "21"), "as prepare_data names it"


def test_each_row_of_a_file_is_a_prompt_and_one_is_for_validation(tokenizer, tmp_path) -> None:
    """Rankings of different rows are not comparable, and a stage without held-out pairs ends."""
    pairs = [{"prompt": f"{n}+1?", "chosen": f"{n + 1}", "rejected": "3"} for n in range(4, 9)]
    rows: list[dict] = [
        *pairs,
        {"prompt": "1+1?", "responses": ["2", "3", "11"], "ranks": [1, 2.0, 2]},
    ]
    path = write(tmp_path / "pairs.jsonl", rows)
    section = FilePreferences(path=str(path), validation_fraction=0.001)
    table = PREFERENCES.validate(encode(read_preferences(section, DATA).rows, tokenizer).table)
    assert table["uid"].n_unique() == 6
    assert table.filter(pl.col("split") == "validation")["uid"].n_unique() == 1
    assert table["level"].null_count() == table.height
    assert table["rank"].to_list()[-3:] == [1, 2, 2]
    digest = preference_digests(FilePreferences(path=str(path)))
    write(path, rows[:1])
    assert preference_digests(FilePreferences(path=str(path))) != digest


def test_bad_rows_are_rejects_and_equal_ones_are_dropped(tmp_path: Path) -> None:
    """One bad pair of thousands ended the stage, and equal ones were trained on."""
    good = [{"prompt": f"{n}+1?", "chosen": f"{n + 1}", "rejected": "3"} for n in range(4, 30)]
    equal = [{"prompt": "3?", "chosen": "3", "rejected": "3"}] * 5
    seen = {**good[0], "images": ["1.jpg"]}
    path = write(tmp_path / "x.jsonl", [{"prompt": "a", "chosen": "b"}, seen, *equal, *good])
    found = read_preferences(FilePreferences(path=str(path)), DATA)
    assert found.left_out == {"missing": 1, "content_part": 1, "equal": 5}
    assert len(found.rows) == 2 * len(good)
    write(path, [{"prompt": "a", "chosen": "b"}] * 4 + good)
    with pytest.raises(UserError, match="4 of 30 rows rejected") as error:
        read_preferences(FilePreferences(path=str(path)), DATA)
    assert "'missing', as row 0: rejected is missing or null" in str(error.value)


def test_single_responses_have_labels_and_are_no_pairs(tmp_path: Path) -> None:
    """TRL's form for KTO; pairs in such a file count as one desirable response and one other."""
    rows: list[dict] = [
        {"prompt": "1+1?", "completion": "2", "label": True},
        {"prompt": "1+1?", "completion": "3", "label": False},
        {"prompt": "2+1?", "chosen": "3", "rejected": "4"},
        *[{"prompt": f"{n}+1?", "completion": f"{n}", "label": False} for n in range(40)],
    ]
    section = FilePreferences(path=str(write(tmp_path / "x.jsonl", rows)))
    found = read_preferences(section, DATA, labels=True)
    assert [row.rank for row in found.rows[:5]] == [1, 2, 1, 2, 2]
    assert len({row.uid for row in found.rows}) == 43
    assert len({row.split for row in found.rows if row.prompt[0]["content"] == "1+1?"}) == 1
    with pytest.raises(
        UserError, match=r"42 of 43 rows rejected.*set preference\.algorithm to kto"
    ):
        read_preferences(section, DATA)
    bad = [{"prompt": "1?", "completion": "1", "label": "yes"}] * 2
    section = FilePreferences(path=str(write(tmp_path / "y.jsonl", bad)))
    with pytest.raises(UserError, match=r"label is 'yes'; it must be true or false"):
        read_preferences(section, DATA, labels=True)


def test_a_file_that_is_not_there_is_named_with_its_setting(monkeypatch) -> None:
    monkeypatch.delenv("GSM8K_DIR", raising=False)
    with pytest.raises(UserError, match=r"set reward_model\.preferences\.path"):
        preference_digests(Gsm8kSolutions())
    with pytest.raises(UserError, match=r"reward_model.preferences.path = '/no.jsonl' does not"):
        preference_digests(FilePreferences(path="/no.jsonl"))


@reads(GSM8K / SOLUTIONS_FILE)
def test_the_real_solutions_are_read_whole(monkeypatch) -> None:
    """1,319 questions of four solutions; 11 were cut off before an answer."""
    monkeypatch.setenv("GSM8K_DIR", str(GSM8K))
    rows = read_preferences(Gsm8kSolutions(), DATA).rows
    assert len({row.uid for row in rows}) == 1319
    assert Counter(Counter(row.uid for row in rows).values()) == {4: 1319}
    assert Counter(row.level for row in rows) == {"correct": 2001, "wrong": 3264, "malformed": 11}
    held_out = {row.uid for row in rows if row.split == "validation"}
    assert 200 < len(held_out) < 330


def test_preferences_of_the_hub_are_looked_at_once_the_data_are_there(
    tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the start, where nothing is fetched, and not after all of SFT."""
    (tmp_path / "pairs.jsonl").write_text('{"question": "1 + 1?", "good": "2", "bad": "3"}\n')
    given = {"preference.data": {"kind": "file", "path": str(tmp_path / "pairs.jsonl")}}
    recipe = load_recipe("smollm2-dpo", given, directory=ROOT / "flows" / "recipes")
    monkeypatch.setattr(data_size, "HUB", str(tmp_path))
    assert check_preferences(recipe) == (None, None)
    with pytest.raises(UserError, match="columns question, good, bad"):
        check_preferences(recipe, tokenizer)


def test_preferences_that_a_template_refuses_end_before_sft(
    tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [
        {"prompt": f"What is {n}?", "chosen": f"{n}", "rejected": "no", "system": "Be short."}
        for n in range(8)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    given = {"preference.data": {"kind": "file", "path": str(path)}}
    recipe = load_recipe("smollm2-dpo", given, directory=ROOT / "flows" / "recipes")
    assert check_preferences(recipe, tokenizer) == (None, 8)
    refuse = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", refuse + tokenizer.chat_template)
    with pytest.raises(UserError, match=r"16 of 16 responses rejected.* no system"):
        check_preferences(recipe, tokenizer)
