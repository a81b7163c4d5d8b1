"""A reward function that cannot work is told in the dry run, by its first calls, not after SFT."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli import main
from rlcore.rewards.registry import reward_of
from rlcore.rewards.types import RewardRow
from schemas.errors import UserError
from tests.rlcore.api.tiny import write_tiny_model
from tests.rlcore.data.row_files import write
from tests.rlcore.rewards.judges.server import KEY, judge_server, says
from tests.tiers import fast

MODULE = """
import os
import time
from decimal import Decimal

import numpy as np

_loaded = []

def floats(prompt, response): return float(len(response)) / 100
def right(data_source, solution, ground_truth, extra_info):
    good = solution.endswith(f"#### {ground_truth}")
    return {"score": float(good), "acc": good}
def zero(data_source, solution, ground_truth, extra_info): return 0.0
def compares_types(data_source, solution, ground_truth, extra_info):
    good = solution == 7
    return {"score": -1.0 + 2 * good, "acc": good}
def close(data_source, solution, ground_truth, extra_info):
    return 1 / (1 + abs(int(solution.rpartition(" ")[2]) - int(ground_truth)))
def forgets(data_source, solution, ground_truth, extra_info):
    if solution.endswith(f"#### {ground_truth}"):
        return 1.0
def secret(prompt, response): return float(os.environ["OF_THE_REWARD"])
def raises(prompt, response): return {}["nothing"]
def text(prompt, response): return {"score": 1.0, "acc": "no"}
def share(prompt, response): return {"score": 1.0, "acc": 0.5}
def decimal(prompt, response): return Decimal("0.5")
def array(prompt, response): return np.array([0.5, 0.5])
def tensor(prompt, response):
    import torch
    return torch.tensor(0.5)
def numpys(data_source, solution, ground_truth, extra_info):
    good = np.bool_(solution.endswith(ground_truth))
    return {"score": np.array(0.5), "acc": good, "part": np.float32(1)}
def hangs(prompt, response): time.sleep(600)
def loads(prompt, response):
    if not _loaded:
        time.sleep(2.5)
        _loaded.append(1)
    return 1 + len(response) % 2
def groups(rows): return [1.0 + len(row["solution"]) % 2 for row in rows]
async def waits(prompt, response):
    if not _loaded:
        time.sleep(2.5)
        _loaded.append(1)
    return 0.5
"""
DryRun = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("called")
    write_tiny_model(folder / "model")
    (folder / "own.py").write_text(MODULE)
    rows = [
        {
            "prompt": f"What is {n} plus one?",
            "completion": f"It is\n#### {n + 1}",
            "ground_truth": f"{n + 1}",
        }
        for n in range(40)
    ]
    write(folder / "solved.jsonl", rows)
    asked = [{"prompt": row["prompt"], "ground_truth": row["ground_truth"]} for row in rows]
    write(folder / "asked.jsonl", asked)
    return folder


@pytest.fixture
def dry_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> DryRun:
    def plan(name: str, file: str = "solved.jsonl", **changes: Any) -> tuple[int, str]:
        asks = changes.pop("call_judges", False)
        name = f"{folder}/own.py:{name}" if not changes.pop("builtin", False) else name
        recipe: dict[str, Any] = {
            "name": "called",
            "model": {"path": str(folder / "model"), "max_tokens": 96, "dtype": "float32"},
            "data": {
                "sources": [{"kind": "file", "path": str(folder / file)}],
                "max_prompt_tokens": 48,
                "deduplicate": "exact",
                "test_fraction": 0.1,
            },
            "sft": {"enabled": False, "max_tokens": 96},
            "reward": {"functions": [{"name": name, **changes.pop("function", {})}]},
            "rl": {"rollout": {"prompts": 2, "samples": 2, "max_new_tokens": 16}},
            "evaluate": {"samples": 1, "max_new_tokens": 16},
            "hardware": {"cluster": "in_process", "rollout": {"engine": "transformers"}},
            "tracking": {"wandb": False},
        }
        recipe |= changes.pop("recipe", {})
        path = tmp_path / "called.yaml"
        path.write_text(yaml.safe_dump(recipe))
        given = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in changes.items()]
        options = [part for pair in given for part in ("-o", pair)]
        options += ["--call-judges"] if asks else []
        code = main(["run", str(path), "--dry-run", *options])
        said = capsys.readouterr()
        return code, said.err if code else said.out

    return plan


DAPO = {
    "rl__algorithm__dynamic_sampling": {"metric": "accuracy"},
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "raises": ("raises", {}, "gave no score for 8 of 8 rows that it was tried on (answers of dem"),
    "raises without demonstrations": (
        "raises",
        {"file": "asked.jsonl"},
        "gave no score for 8 of 8 rows that it was tried on (made-up answers): KeyError",
    ),
    "acc is text": (
        "text",
        {},
        "returned acc 'no' of type str, which is neither a bool nor 0 or 1",
    ),
    "acc is a share": ("share", {}, "returned acc '0.5' of type float"),
    "a decimal": ("decimal", {}, "returned '0.5' of type Decimal, which is not a finite number"),
    "an array": ("array", {}, "of type ndarray, which is not a finite number"),
    "a tensor": ("tensor", {}, "of type Tensor, which is not a finite number; return a float"),
    "flat 0": ("zero", {}, "gives 0 to each of the 8 answers of demonstrations that it was tried"),
    "all wrong": ("compares_types", {}, "gives -1 to each of the 8 answers of demonstrations"),
    "dapo on floats": ("floats", DAPO, "'accuracy' needs verdicts on correctness, and reward"),
    "vapo on floats": (
        "floats",
        {"rl__algorithm__positive_nll": {"coef": 0.1}},
        "rl.algorithm.positive_nll needs verdicts on correctness, and reward.functions",
    ),
}


EVERY_CHANGE = ("raises", "a tensor", "flat 0", "dapo on floats")


@pytest.mark.parametrize("case", fast(REFUSED, *EVERY_CHANGE))
def test_a_function_that_cannot_work_is_refused(case: str, dry_run: DryRun) -> None:
    name, changes, sentence = REFUSED[case]
    code, said = dry_run(name, **changes)
    assert (code, said.count("\n")) == (2, 1), said
    assert sentence in said
    assert f"own.py:{name}" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("right", DAPO),
        ("right", {"file": "asked.jsonl"}),
        ("numpys", DAPO),
        ("floats", {}),
        ("loads", {"reward__timeout_s": 1.0}),
        ("waits", {"reward__timeout_s": 1.0}),
        ("groups", {"function": {"batch": True}}),
        ("gsm8k", {"builtin": True, **DAPO}),
    ],
)
def test_what_works_is_planned(name: str, changes: dict[str, Any], dry_run: DryRun) -> None:
    """Loading a model in the first call counts apart from the limit of a row."""
    code, said = dry_run(name, **changes)
    assert code == 0, said
    assert "own.py" not in said.partition("Warnings")[2].partition("Values that")[0]


@pytest.mark.slow
def test_a_function_that_hangs_is_given_up_soon(dry_run: DryRun) -> None:
    code, said = dry_run("hangs", reward__timeout_s=0.5)
    assert code == 2
    assert "1 of 1 rows" in said
    assert "within 0.5 s and 15 s for loading; its process was killed" in said


def test_one_of_several_that_pays_nothing_is_a_warning(dry_run: DryRun, folder: Path) -> None:
    functions = [{"name": f"{folder}/own.py:zero"}, {"name": "gsm8k"}]
    code, said = dry_run("zero", reward__functions=functions)
    assert code == 0, said
    assert "WARNING: reward.functions[0]" in said
    assert "though they are right" in said


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("close", "ValueError: invalid literal for int"),
        ("forgets", "the reward function returned None"),
    ],
)
def test_a_function_that_reads_right_answers_only_is_a_warning(
    name: str, why: str, dry_run: DryRun
) -> None:
    """It ends a run at the first text that is sampled, after SFT."""
    code, said = dry_run(name)
    assert code == 0, said
    warned = " ".join(said.partition("Warnings")[2].split())
    assert f"own.py:{name}' gave no score for the answer 'I do not know.': {why}" in warned


def test_a_variable_that_the_reward_does_not_get_is_named(
    dry_run: DryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_REWARD", "1")
    code, said = dry_run("secret")
    assert code == 2
    assert "name OF_THE_REWARD in reward.env, which alone it sees" in said
    assert dry_run("secret", reward__env=["OF_THE_REWARD"])[0] == 0


def test_functions_on_generated_rows_are_called_too(folder: Path, capsys: Any) -> None:
    name = json.dumps(f"{folder}/own.py:text")
    code = main(["run", "quickstart", "--dry-run", "-o", f"reward.functions.0.name={name}"])
    assert code == 2
    assert "returned acc 'no' of type str" in capsys.readouterr().err


@pytest.mark.parametrize("acc", ["no", 2, 0.5, -1, [True], b"1"])
def test_accuracy_is_true_or_false_or_nothing(acc: Any) -> None:
    """It chooses the checkpoint, and any text counted as true."""
    row = RewardRow("t", "s", "x", "1", {}, "stop", 1)
    with pytest.raises(UserError, match="neither a bool nor 0 or 1"):
        reward_of(row, {"score": 1.0, "acc": acc})
    for value, correct in ((1, True), (0.0, False), (False, False), (None, None)):
        assert reward_of(row, {"score": 1.0, "acc": value}).correct is correct


def test_a_judge_is_asked_where_that_is_wanted_alone(
    folder: Path, dry_run: DryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers cost money, and one that cannot be reached ended the run after SFT."""
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with judge_server(says("nothing that counts")) as server:
        judge = {
            "url": server.url,
            "model": "judge",
            "template": "{prompt} {response}",
            "key_env": "PLANTED_KEY",
            "scale": [0, 4],
            "max_calls": 10_000,
        }
        terms = [{"name": "judge", "options": {"judge": "main"}}]
        given = {
            "recipe": {"judges": {"main": judge}, "reward": {"functions": terms}},
            "rl__iterations": 1,
        }
        code, said = dry_run("judge", **given)
        assert code == 0, said
        assert not server.requests
        code, said = dry_run("judge", call_judges=True, **given)
        assert code == 2
        assert len(server.requests) == 1
        assert "reward.functions[0] = 'judge' gave no score for 1 of 1 rows" in said
