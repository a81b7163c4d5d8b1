"""``rl-pipeline from-verl`` writes a recipe that ``rl-pipeline run`` takes."""

import json
from pathlib import Path

import pytest

from flows.cli import main
from rlcore.models.base import build_base_model
from rlcore.results.metrics import metrics_frame, publish_metrics
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.model import FromScratch, ModelSection

COMMAND = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo env.rollout.n=4 ..."


@pytest.mark.slow
def test_from_verl_writes_a_recipe_that_can_be_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.yaml"
    assert main(["from-verl", COMMAND, "--name", "mine", "--out", str(recipe)]) == 0
    assert main(["run", str(recipe), "--dry-run", "-o", f"store={tmp_path}"]) == 0
    assert "Plan of recipe 'mine'" in capsys.readouterr().out


def test_a_plan_says_where_each_value_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    """A value that a base file sets for another task is found before the run, not after."""
    assert main(["run", "hard-dapo", "--dry-run", "-o", "rl.iterations=7"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["rl.iterations", "7", "100", "override"] in lines
    assert ["rl.algorithm.clip_high", "0.28", "0.2", "preset", "dapo"] in lines
    assert ["evaluate.samples", "4", "8", "_hard.yaml"] in lines


def test_from_verl_prints_and_reads_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(COMMAND)
    too_long_a_name = COMMAND.replace("/", "") + f" trainer.experiment_name={'x' * 300}/y"
    for given in (str(script), too_long_a_name):
        assert main(["from-verl", given, "--name", "mine"]) == 0
        assert "advantage: rloo" in capsys.readouterr().out


def test_what_may_not_be_read_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of another user's on a shared machine; root may read all, so it is played."""
    hidden = tmp_path / "theirs" / "run.yaml"

    def denied(self: Path) -> bool:
        if self == hidden:
            raise PermissionError(13, "Permission denied", str(self))
        return True

    monkeypatch.setattr(Path, "is_file", denied)
    assert main(["run", str(hidden), "--dry-run"]) == 2
    said = f"error: [Errno 13] Permission denied: '{hidden}'; ask its owner"
    assert said in capsys.readouterr().err


def test_a_typo_ends_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["from-verl", COMMAND.replace("adv_estimator", "adv_estimater")]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'algorithm.adv_estimator'" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "rl.iterations=[1"], "override rl.iterations = '[1' is not valid YAML"),
        (["-o", "reward.functions.0.name=arithmetc"], "did you mean 'arithmetic'"),
        (["-o", "rl.algorithm.advantage=no_package.spo:f"], "no module 'no_package.spo'"),
        (["-o", "rl.algorithm.policy_loss=no_package.spo:f"], "rl.algorithm.policy_loss"),
    ],
)
def test_a_plan_refuses_what_the_run_would(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt function would end the run after its SFT, minutes later."""
    assert main(["run", "quickstart", "--dry-run", *arguments]) == 2
    assert said in capsys.readouterr().err


SMALLEST = """
name: mine
model: {{path: {model}}}
data: {{sources: [{{kind: gsm8k, path: {data}}}]}}
reward: {{functions: [{{name: gsm8k}}]}}
"""


@pytest.fixture(scope="module")
def smallest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of nothing but what must be given, with a local model and local data."""
    folder = tmp_path_factory.mktemp("smallest")
    scratch = FromScratch(
        hidden_size=32,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        intermediate_size=32,
        max_position_embeddings=2048,
    )
    model = ModelSection(from_scratch=scratch, dtype="float32")
    build_base_model(model, folder / "model", texts=["How many? #### 5"], seed=0)
    for split in ("train", "test"):
        rows = [
            {"question": f"How many are {split} {number}?", "answer": "Five. #### 5"}
            for number in range(80)
        ]
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "mine.yaml").write_text(SMALLEST.format(model=folder / "model", data=folder))
    return folder / "mine.yaml"


def test_a_plan_counts_the_rows_of_the_last_batch(
    smallest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """80 demonstrations, 5 % of them held out, in batches of 64; batches of 200 make no step."""
    assert main(["run", str(smallest), "--dry-run"]) == 0
    assert "2 optimizer steps (the last of 12) per epoch" in capsys.readouterr().out
    assert main(["run", str(smallest), "--dry-run", "-o", "sft.batch_size=200"]) == 2
    assert "sft.batch_size = 200 exceeds the 76 training demonstrations" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_the_smallest_recipe_agrees_with_our_defaults(
    smallest: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dtype: str | None,
) -> None:
    """A default that contradicts another is an error in what a person has not written."""
    monkeypatch.chdir(tmp_path)  # where a default store would be
    chosen = ["-o", f"model.dtype={dtype}"] if dtype else []
    assert main(["run", str(smallest), "--dry-run", *chosen]) == 0, capsys.readouterr().err
    assert "Plan of recipe 'mine'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere/run.sh"], "there is no file 'nowhere/run.sh'"),
        ([COMMAND, "--out", "/nowhere/mine.yaml"], "there is no folder '/nowhere'"),
    ],
)
def test_a_wrong_path_is_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["from-verl", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_damaged_manifest_is_named_beside_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One flipped bit in years of runs must not end every query."""
    store = ArtifactStore(tmp_path)
    for key in ("whole", "damaged"):
        frame = metrics_frame("rl", 1, {"loss": 1.0})
        publish_metrics(store, "run", key, frame, Lineage("r", "c"))
    manifest = tmp_path / "metrics" / "run" / "damaged" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"metrics"', b'"netrics"'))
    assert main(["sql", "select key from artifacts", "--store", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert "run/whole" in output.out
    assert "run/damaged" not in output.out
    assert f"{manifest.parent} is left out" in output.err


def test_a_store_that_is_not_there_is_not_an_empty_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty table would be read as: nothing was ever run."""
    store = str(tmp_path / "store")
    assert main(["sql", "select * from metrics", "--store", store]) == 2
    assert f"--store {store}" in capsys.readouterr().err


def test_a_key_that_a_reward_needs_is_missed_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reward functions run after SFT only: hours later, on a GPU."""
    arguments = ["run", "quickstart", "--dry-run", "-o", "reward.env=[JUDGE_KEY]"]
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    assert main(arguments) == 2
    assert "reward.env[0] = 'JUDGE_KEY' is not set where" in capsys.readouterr().err
    monkeypatch.setenv("JUDGE_KEY", "planted")
    assert main(arguments) == 0
    assert "planted" not in capsys.readouterr().out
