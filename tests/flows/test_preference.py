"""The stage preference in a whole run: instead of RL, with evaluation, export and a second run."""

import json
import subprocess
from pathlib import Path

import pytest

from rlcore.evaluation.run_export import export_run
from rlcore.results.queries import query
from rlcore.results.run import Run
from rlcore.store.artifacts import ArtifactStore
from schemas.errors import UserError
from tests.flows.small_run import INLINE, SMALL, run_recipe, summary_of

pytestmark = pytest.mark.timeout(300)


def run(directory: Path, **changes: object) -> subprocess.CompletedProcess[str]:
    rows = [
        {"prompt": f"What is {n} + 2?", "chosen": f"{n}+2={n + 2}", "rejected": f"{n}+2={n}"}
        for n in range(10, 34)
    ]
    pairs = directory / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = {
        **SMALL,
        **INLINE,
        "preference": {
            "data": {"kind": "file", "path": str(pairs)},
            "batch_size": 8,
            "max_tokens": 64,
        },
        "reward.functions": [{"name": "arithmetic"}],
        "rl.enabled": False,
        "evaluate.checkpoints": ["base", "sft", "preference"],
        **changes,
    }
    return run_recipe(directory, ["", "quickstart", json.dumps(overrides)])


@pytest.mark.slow
def test_a_run_without_rl_ends_with_the_policy_of_preference(
    prefect_server: str, tmp_path: Path
) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]
    summary = summary_of(tmp_path)
    stages = ["base_model", "prepare_data", "sft", "preference", "evaluate", "export"]
    assert list(summary["seconds"]) == stages
    assert {"base", "sft", "preference"} <= set(summary["accuracy"])
    store = ArtifactStore(tmp_path / "runs" / "store")
    metrics = query(
        store, "select name, step, value from metrics where stage = 'preference' order by step"
    )
    first = dict(metrics.filter(metrics["step"] == 1).select("name", "value").iter_rows())
    assert first["preference/loss"] == pytest.approx(0.693147, abs=1e-5)
    assert {"rewards/margins", "logps/chosen", "entropy", "preference/lr"} <= set(first)
    assert "eval_rewards/accuracies" in metrics["name"].to_list()
    kept = query(store, "select count(*) as n from reference_logprobs")["n"].item()
    assert kept == 48
    card = " ".join((Path(summary["export"]) / "README.md").read_text().split())
    assert "the policy after preference training: this model" in card
    assert "dpo, beta 0.1, learning rate 1e-06, loss sigmoid; 1 epoch(s) of the rankings" in card

    made = Run.open("latest", tmp_path / "runs")
    exported = export_run(made, log=lambda _: None)
    assert exported.iteration is None
    assert (exported.directory / "model.safetensors").is_file()
    with pytest.raises(UserError, match=r"--iteration 1: .* rl\.enabled = false; leave it out"):
        export_run(made, iteration=1, log=lambda _: None)

    again = run(tmp_path)
    assert again.returncode == 0, again.stdout[-4000:]
    assert summary_of(tmp_path)["cached"] == stages


@pytest.mark.slow
def test_rl_begins_with_the_policy_of_preference(prefect_server: str, tmp_path: Path) -> None:
    done = run(
        tmp_path,
        **{
            "rl.enabled": True,
            "evaluate.checkpoints": ["sft", "preference", "rl"],
            "preference.algorithm": "kto",
        },
    )
    assert done.returncode == 0, done.stdout[-4000:]
    store = ArtifactStore(tmp_path / "runs" / "store")
    summary = summary_of(tmp_path)
    made = {stage: uri.rsplit("/", 1)[1] for stage, uri in summary["artifacts"].items()}
    parents = query(
        store, f"select parent_key from lineage where key = '{made['rl']}' and role = 'policy'"
    )
    assert set(parents["parent_key"]) == {made["preference"]}
    assert summary["verdict"]
