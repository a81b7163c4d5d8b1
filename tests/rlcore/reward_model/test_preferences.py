"""Where ranked responses come from: the policy's own samples, GSM8K's solutions, files."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.data.split import content_uid
from rlcore.engines.types import Generation, Sampling
from rlcore.models.base import build_base_model
from rlcore.models.tokenizer import load_tokenizer
from rlcore.reward_model.files import (
    SOLUTIONS_FILE,
    preference_digests,
    read_rankings,
    read_solutions,
)
from rlcore.reward_model.preferences import check_pairs, encode, fit
from rlcore.reward_model.sampled import num_responses, sample_preferences
from rlcore.rewards.types import Failure, Reward, RewardRow
from schemas.errors import UserError
from schemas.outcomes import FinishReason
from schemas.recipe import FromScratch, ModelSection
from schemas.reward_model import FilePreferences, Gsm8kSolutions, SampledPreferences
from schemas.rl import RewardFunction, RewardSection
from schemas.tables import Preferences
from tests.inputs import GSM8K, reads
from tests.rlcore.trajectories.scripted import STAMP, ScriptedEngines, ScriptedTokenizer

REWARD = RewardSection(functions=(RewardFunction(name="gsm8k"),))
SECTION = SampledPreferences(prompts=30, validation_prompts=10, max_new_tokens=8)
EOS = 9
OUTCOMES = {1: ("ok", True), 2: ("wrong", False), 3: ("no_answer", False), 4: ("timeout", None)}


def prompts(num_train: int = 40, num_validation: int = 12) -> pl.DataFrame:
    splits = ["train"] * num_train + ["validation"] * num_validation
    return pl.DataFrame(
        [
            {
                "uid": f"p{number}",
                "split": split,
                "data_source": "sums",
                "prompt": [{"role": "user", "content": "?"}],
                "prompt_ids": [7, 8],
                "ground_truth": "1",
                "extra_info": "{}",
            }
            for number, split in enumerate(splits)
        ],
        schema_overrides={"prompt_ids": pl.List(pl.Int32)},
    )


def generate(ids: list[list[int]], seeds: list[int], sampling: Sampling) -> list[Generation]:
    """The seed decides the response: 1 right, 2 wrong, 3 malformed."""
    assert sampling.max_new_tokens == 8
    assert all(prompt == [7, 8] for prompt in ids)
    return [Generation([1 + seed % 3, EOS], [0.0, 0.0], FinishReason.STOP, STAMP) for seed in seeds]


def score(rows: list[RewardRow]) -> list[Reward]:
    rewards = []
    for row in rows:
        outcome, correct = OUTCOMES[int(row.response)]
        value = None if outcome == "timeout" else float(correct or 0)
        rewards.append(Reward(row.trajectory_id, outcome, value, correct=correct, detail="slow"))
    return rewards


def decode(token_ids: list[int]) -> str:
    return str(token_ids[0])


def sample(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "seed": 0,
        "engines": ScriptedEngines(changes.pop("generate", generate)),
        "tokenizer": ScriptedTokenizer(decode, EOS),
        "scorer": changes.pop("score", score),
        "reward": REWARD,
    }
    return sample_preferences(SECTION, prompts(), **(arguments | changes))


def test_every_prompt_gets_4_to_9_responses_and_the_same_again() -> None:
    """K = 4..9 as in InstructGPT. A rerun that drew another K would train on other data under one
    key."""
    table = Preferences.validate(sample().table)
    sizes = table.group_by("uid").len()["len"].to_list()
    assert len(sizes) == 40
    assert set(sizes) <= set(range(4, 10))
    assert len(set(sizes)) == 6, "all six sizes occur among forty prompts"
    assert table.equals(sample().table)
    assert not table.equals(sample(seed=1).table)
    draws = Counter(num_responses(SECTION, f"u{n}", 0) for n in range(6000))
    assert all(900 < draws[k] < 1100 for k in range(4, 10)), draws


def test_the_verifier_ranks_correct_before_wrong_before_malformed() -> None:
    table = sample().table
    found = set(table.select("response", "level", "rank").rows())
    assert found == {("1", "correct", 1), ("2", "wrong", 2), ("3", "malformed", 3)}
    assert set(table["token_ids"].list.len()) == {4}
    assert set(table["prompt_tokens"]) == {2}
    splits = dict(table.group_by("split").agg(pl.col("uid").n_unique()).iter_rows())
    assert splits == {"train": 30, "validation": 10}


def test_what_cannot_be_ranked_is_left_out_and_counted() -> None:
    def some_fail(ids: list, seeds: list[int], sampling: Sampling) -> list[Generation]:
        made = generate(ids, seeds, sampling)
        made[0] = Generation([4, EOS], [0.0, 0.0], FinishReason.STOP, STAMP)  # its score times out
        made[1] = Generation([2], [0.0], FinishReason.ABORT, STAMP)
        return made

    found, whole = sample(generate=some_fail), sample()
    assert found.left_out == {"unscorable": 1, "aborted": 1}
    assert found.table.height == whole.table.height - 2
    for bound in ("max_error_fraction", "max_timeout_fraction"):
        strict = REWARD.model_copy(update={bound: 0.0})
        with pytest.raises(UserError, match=rf"sampled responses .* above reward\.{bound} = 0"):
            sample(generate=some_fail, reward=strict)


def test_a_judge_of_weight_zero_that_fails_leaves_a_response_unscorable() -> None:
    """Its verdict is what ranks, so its failure is no missing judge."""

    def fails_once(rows: list[RewardRow]) -> list[Reward]:
        first, *rest = score(rows)
        failures = {"judge": Failure("error", "no service")}
        return [Reward(first.trajectory_id, "ok", 0.0, failures=failures), *rest]

    assert sample(score=fails_once).left_out == {"unscorable": 1}
    strict = REWARD.model_copy(update={"max_error_fraction": 0.0})
    with pytest.raises(UserError, match="is error: no service"):
        sample(score=fails_once, reward=strict)


def test_rewards_that_judge_nothing_cannot_rank() -> None:
    def plain(rows: list[RewardRow]) -> list[Reward]:
        return [Reward(row.trajectory_id, "ok", 0.5) for row in rows]

    with pytest.raises(UserError, match="do not judge the correctness"):
        sample(score=plain)


def test_no_two_responses_that_differ_is_said_before_training() -> None:
    with pytest.raises(UserError, match="no prompt with two of unequal rank"):
        check_pairs(sample().table.filter(pl.col("rank") == 1))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = ModelSection(
        from_scratch=FromScratch(hidden_size=16, num_heads=2, num_layers=1, intermediate_size=16)
    )
    path = tmp_path_factory.mktemp("model")
    build_base_model(model, path, texts=["What is 2 + 3? 2+3=5\n#### 5", "A: 5"] * 20, seed=0)
    return load_tokenizer(path)


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def solutions(count: int) -> list[dict]:
    """Rows in the form of GSM8K's example model solutions."""
    return [
        {
            "question": f"What is {n} + 1?",
            "ground_truth": f"{n}+1={n + 1}\nA: {n + 1}",
            "6b_finetuning": {"is_correct": True, "solution": f"{n}+1={n + 1}\nA: {n + 1}"},
            "6b_verification": {"is_correct": False, "solution": f"{n}+1={n}\nA: {n}"},
            "175b_finetuning": {"is_correct": False, "solution": f"{n}+1=11111111"},
            "175b_verification": {"is_correct": False, "solution": f"{n}+1=9\nA: 9 or so"},
        }
        for n in range(20, 20 + count)
    ]


def test_model_solutions_become_ranked_answers_in_the_policys_form(tokenizer, tmp_path) -> None:
    """Cut off before 'A: ' is malformed; 'A: 21' is judged as the '#### 21' the policy writes."""
    path = write(tmp_path / SOLUTIONS_FILE, solutions(40))
    section = Gsm8kSolutions(path=str(path), instruction="Answer.")
    table = Preferences.validate(encode(read_solutions(section), tokenizer).table)
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


def test_long_responses_are_left_out_and_counted(tokenizer, tmp_path) -> None:
    path = write(tmp_path / SOLUTIONS_FILE, solutions(4))
    ranked = encode(read_solutions(Gsm8kSolutions(path=str(path))), tokenizer)
    longest = int(ranked.table["token_ids"].list.len().to_numpy().max())
    assert fit(ranked, longest).left_out == {}
    assert fit(ranked, 10).left_out == {"too_long": 16}


def test_chosen_rejected_and_ranked_files(tokenizer, tmp_path) -> None:
    """TRL's explicit and implicit prompts, and ours; each row is ranked by itself."""
    asked, said = {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}
    rows = [
        {"prompt": "1+1?", "chosen": "2", "rejected": "3"},
        {"prompt": [asked], "chosen": [said], "rejected": [{**said, "content": "4"}]},
        {"chosen": [asked, said], "rejected": [asked, {**said, "content": "5"}]},
        {"prompt": "1+1?", "responses": ["2", "3", "11"], "ranks": [1, 2, 2]},
    ]
    path = write(tmp_path / "pairs.jsonl", rows)
    ranked = read_rankings(FilePreferences(path=str(path)))
    assert [(row.response, row.rank) for row in ranked] == [
        *(("2", 1), ("3", 2)),
        *(("2", 1), ("4", 2)),
        *(("2", 1), ("5", 2)),
        *(("2", 1), ("3", 2), ("11", 2)),
    ]
    assert all(row.prompt == [asked] for row in ranked)
    table = Preferences.validate(encode(ranked, tokenizer).table)
    assert table["uid"].n_unique() == 4
    assert table["level"].null_count() == table.height
    digest = preference_digests(FilePreferences(path=str(path)))
    write(path, rows[:1])
    assert preference_digests(FilePreferences(path=str(path))) != digest


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "completion": "b"}, "the form must be TRL"),
        ({"prompt": "a", "responses": ["b", "c"], "ranks": [1]}, "one rank of 1"),
        ({"prompt": "a", "chosen": "b", "rejected": " "}, "one assistant turn that is not"),
        ({"chosen": "b", "rejected": "c"}, "a prompt ends with a user's turn"),
    ],
)
def test_other_rows_are_refused_by_number(row: dict, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row])
    with pytest.raises(UserError, match=message) as error:
        read_rankings(FilePreferences(path=str(path)))
    assert "row 0" in str(error.value)


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
    rows = read_solutions(Gsm8kSolutions())
    assert len({row.uid for row in rows}) == 1319
    assert Counter(Counter(row.uid for row in rows).values()) == {4: 1319}
    assert Counter(row.level for row in rows) == {"correct": 2001, "wrong": 3264, "malformed": 11}
    held_out = {row.uid for row in rows if row.split == "validation"}
    assert 200 < len(held_out) < 330
