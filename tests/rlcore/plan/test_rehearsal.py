"""What ended in prepare_data, after SFT or never: each is one sentence of the dry run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli import main
from rlcore.plan import rehearsal
from tests.rlcore.api.tiny import write_tiny_model
from tests.rlcore.data.row_files import write

Rows = list[dict[str, Any]]
DryRun = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def dry_run(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> DryRun:
    """Return a function that plans a recipe of a training and a test file: its exit code and what
    it says."""

    def plan(
        train: Rows, test: Rows | None, reward: str = "math", **changes: Any
    ) -> tuple[int, str]:
        sources = [{"kind": "file", "path": str(write(tmp_path / "train.jsonl", train))}]
        if test is not None:
            path = str(write(tmp_path / "test.jsonl", test))
            sources.append({"kind": "file", "path": path, "split": "test"})
        recipe: dict[str, Any] = {
            "name": "rehearsed",
            "model": {"path": str(model), "max_tokens": 96, "dtype": "float32"},
            "data": {"sources": sources, "max_prompt_tokens": 48, "deduplicate": "exact"},
            "sft": {"enabled": False, "max_tokens": 96, "batch_size": 1},
            "reward": {"functions": [{"name": reward}]},
            "rl": {"rollout": {"prompts": 2, "samples": 2, "max_new_tokens": 16}},
            "evaluate": {"samples": 1, "max_new_tokens": 16},
            "hardware": {"cluster": "in_process", "rollout": {"engine": "transformers"}},
            "tracking": {"wandb": False},
        }
        file = tmp_path / "rehearsed.yaml"
        file.write_text(yaml.safe_dump(recipe))
        given = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in changes.items()]
        options = [part for pair in given for part in ("-o", pair)]
        code = main(["run", str(file), "--dry-run", *options])
        said = capsys.readouterr()
        return code, said.err if code else said.out

    return plan


def sums(numbers: range, **columns: Any) -> Rows:
    return [
        {"prompt": f"What is {n} plus one?", "ground_truth": str(n + 1), **columns} for n in numbers
    ]


def without(rows: Rows, column: str) -> Rows:
    return [{name: value for name, value in row.items() if name != column} for row in rows]


TEST = sums(range(90, 94))
FAULTS: dict[str, tuple[Rows, Rows | None, dict[str, Any], str]] = {
    "a column that nobody mapped": (
        [{"prompt": row["prompt"], "answer": row["ground_truth"]} for row in sums(range(8))],
        TEST,
        {},
        "train.jsonl' row 0: reward.functions[0] = 'math' cannot score it, since it has no ground"
        " truth (8 of 12 prompts); name the column that holds it on the source,",
    ),
    "completions without a truth": (
        without(sums(range(8), completion="#### 1"), "ground_truth"),
        TEST,
        {},
        "cannot score it, since it has no ground truth (8 of 12 prompts); name the column",
    ),
    "one row without a truth": (
        [*sums(range(8)), {"prompt": "What is none?", "ground_truth": None}],
        TEST,
        {"data__max_reject_fraction": 0.5},
        "row 8: reward.functions[0] = 'math' cannot score it, since it has no ground truth",
    ),
    "a fraction": (
        [*sums(range(8)), {"prompt": "Half of a half?", "ground_truth": "1/4"}],
        TEST,
        {"reward": "gsm8k"},
        "row 8: reward.functions[0] = 'gsm8k' cannot score it, since the ground_truth '1/4' is not",
    ),
    "words": (
        [*sums(range(8)), {"prompt": "Some apples?", "ground_truth": "1/7 apples"}],
        TEST,
        {"reward": "gsm8k", "reward__functions__0__options": {"mode": "numeric"}},
        "the ground_truth '1/7 apples' is not a number",
    ),
    "thousands in strict": (
        [*sums(range(8)), {"prompt": "Many?", "ground_truth": "1,000"}],
        TEST,
        {"reward": "gsm8k"},
        "the ground_truth '1,000' is not what mode strict reads after '####'",
    ),
    "a solution as a truth": (
        [*sums(range(8)), {"prompt": "Many?", "ground_truth": "5 + 5 = 10\n#### 10"}],
        TEST,
        {},
        "is a solution and no answer",
    ),
    "no tests": (sums(range(8)), TEST, {"reward": "code"}, "is not JSON with 'inputs'"),
    "a filter that rejects all": (
        sums(range(8)),
        TEST,
        {"data__filters": ["length(ground_truth) > 9"], "data__max_reject_fraction": 1.0},
        "none of 8 train prompts is left after preparation; loosen data.filters",
    ),
    "the test rows": (
        sums(range(8)),
        sums(range(8)),
        {"data__max_reject_fraction": 1.0},
        "none of 8 train prompts is left after preparation",
    ),
    "the test rows, most": (sums(range(8)), sums(range(7)), {}, "7 for 'contaminated', as row 0"),
    "longer than the most": (
        [{**row, "prompt": "1234567890" * 6} for row in sums(range(8))],
        TEST,
        {},
        "8 for 'over_length', as row 0:",
    ),
    "fewer than an iteration takes": (
        sums(range(12)),
        TEST,
        {"rl__rollout__prompts": 12},
        "rl.rollout.prompts = 12 exceeds the 11 training prompts that data.sources give (1 more are"
        " for validation, 4 for the test)",
    ),
    "copies": (
        sums(range(4)) * 3,
        TEST,
        {"rl__rollout__prompts": 4, "data__max_reject_fraction": 1.0},
        "rl.rollout.prompts = 4 exceeds the 3 training prompts",
    ),
    "no test rows": (sums(range(8)), None, {}, "set data.test_fraction, e.g. to 0.05, or add"),
    "all for validation and the test": (
        sums(range(8)),
        None,
        {"data__test_fraction": 0.5, "data__validation_fraction": 0.5},
        "leave no training prompts; lower one",
    ),
    "no function for a source": (
        sums(range(8)),
        TEST,
        {"reward__functions__0__data_sources": ["sums"]},
        "names 'sums', and the prompts are of test.jsonl, train.jsonl",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_one_sentence_of_the_dry_run(case: str, dry_run: DryRun) -> None:
    train, test, changes, sentence = FAULTS[case]
    code, said = dry_run(train, test, **changes)
    assert (code, said.count("\n")) == (2, 1), said
    assert sentence in said


WORKS: dict[str, tuple[Rows, Rows | None, dict[str, Any], str]] = {
    "a mapped column": (
        [{"prompt": row["prompt"], "answer": row["ground_truth"]} for row in sums(range(10))],
        None,
        {"data__sources__0__columns": {"ground_truth": "answer"}, "data__test_fraction": 0.05},
        "prepared 8 train + 1 validation + 1 test prompts",
    ),
    "a truth that a filter leaves out": (
        [*sums(range(10)), {"prompt": "Half of a half?", "ground_truth": "1/4"}],
        TEST,
        {"reward": "gsm8k", "data__filters": ["ground_truth <> '1/4'"]},
        "1 rows rejected (1 filter)",
    ),
    "watching functions read what they can": (
        [*sums(range(10)), {"prompt": "Half of a half?", "ground_truth": "1/4"}],
        TEST,
        {
            "reward__functions": [{"name": "math"}, {"name": "gsm8k", "weight": 0}],
        },
        "prepared 10 train",
    ),
    "repeated questions": (
        sums(range(10)),
        sums(range(90, 93)) * 4,
        {},
        "12 test prompts ask 3 questions: 9 repeat one",
    ),
}


@pytest.mark.parametrize("case", WORKS)
def test_what_works_is_said_in_numbers(case: str, dry_run: DryRun) -> None:
    train, test, changes, sentence = WORKS[case]
    code, said = dry_run(train, test, **changes)
    assert code == 0, said
    assert sentence in said


@pytest.mark.slow
def test_demonstrations_are_asked_for_a_reward_that_needs_no_truth(
    dry_run: DryRun, tmp_path: Path
) -> None:
    """Prompt and completion, or messages, and f(prompt, response): it was said to have no rows."""
    (tmp_path / "own_reward.py").write_text("def f(prompt, response): return len(response) / 100\n")
    rows = without(sums(range(10), completion="It is more."), "ground_truth")
    code, said = dry_run(rows, None, f"{tmp_path}/own_reward.py:f", data__test_fraction=0.1)
    assert code == 0, said
    assert "train + 1 validation" in said
    chats = [
        {
            "messages": [
                {"role": "user", "content": row["prompt"]},
                {"role": "assistant", "content": "Yes."},
            ]
        }
        for row in rows
    ]
    code, said = dry_run(chats[1:], chats[:1], f"{tmp_path}/own_reward.py:f", sft__enabled=True)
    assert code == 0, said
    assert (
        "prepared 8 train + 1 validation + 1 test prompts and 8 train + 1 validation demon" in said
    )


def test_of_large_files_the_first_rows_are_prepared(
    dry_run: DryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run of a million rows takes seconds, and what it refuses it has read to the end."""
    monkeypatch.setattr(rehearsal, "REHEARSED_ROWS", 20)
    code, said = dry_run(sums(range(80)), TEST)
    assert code == 0, said
    assert "of the first rows: prepared" in said
    code, said = dry_run(sums(range(80)), TEST, rl__rollout__prompts=40)
    assert code == 0, said
    assert "  prepared 7" in said
    code, said = dry_run(sums(range(80)), TEST, data__filters=["ground_truth > '9'"])
    assert code == 2
    assert "of 80 rows rejected" in said


def test_lengths_are_not_judged_by_another_models_tokenizer(dry_run: DryRun) -> None:
    """Only the hub has it: rows are compared and filtered all the same."""
    hub = {"model__path": "somebody/a-model-that-is-not-here"}
    long = [{**row, "prompt": row["prompt"] + " word" * 30} for row in sums(range(10))]
    code, said = dry_run(long, TEST, **hub)
    assert code == 0, said
    assert "prepared 9 train" in said
    code, said = dry_run(sums(range(8)), sums(range(8)), data__max_reject_fraction=1.0, **hub)
    assert code == 2
    assert "none of 8 train prompts is left" in said
