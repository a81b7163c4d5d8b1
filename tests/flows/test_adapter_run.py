"""The pipeline with an adapter, from the recipe to the export, killed on its way or not."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlcore.models.files import model_directory
from rlcore.store.artifacts import ArtifactStore
from tests.flows.small_run import INLINE, model_digests, run_small
from tests.flows.test_resume import POINTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
IN_RL: dict[str, Any] = {
    **INLINE,
    "model.adapter": {"rank": 4, "alpha": 8, "stages": ["rl"]},
    "rl.algorithm.kl": {"where": "loss", "coef": 0.01, "estimator": "k3"},
    "rl.update.optimizer.lr": 1e-2,
}


def store_of(directory: Path) -> ArtifactStore:
    return ArtifactStore(directory / "runs" / "store")


def policies(directory: Path) -> dict[str, Path]:
    """Return the artifacts of SFT and RL."""
    store = store_of(directory)
    found = {}
    for made in store.manifests(kinds=["policy"]):
        ref = store.find("policy", made.key)
        assert ref is not None
        found["rl" if "iteration" in made.metadata else "sft"] = store.directory(ref)
    return found


def exported(directory: Path) -> Path:
    summary = json.loads((directory / "runs" / "latest" / "summary.json").read_text())
    return Path(summary["export"])


def over(base: Path, adapter: Path) -> dict[str, torch.Tensor]:
    """Return the weights of ``base`` with an adapter, as peft merges them."""
    from peft import PeftModel

    model = AutoModelForCausalLM.from_pretrained(base)
    return PeftModel.from_pretrained(model, str(adapter)).merge_and_unload().state_dict()


def assert_equal(found: Any, model: Path) -> None:
    expected = AutoModelForCausalLM.from_pretrained(model).state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def run(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("adapter")
    done = run_small(directory, IN_RL)
    assert done.returncode == 0, done.stdout[-4000:]
    return directory


def test_the_export_is_the_policy_below_with_the_adapter(run: Path) -> None:
    below, model = policies(run)["sft"], exported(run)
    assert not (below / "adapter").exists(), "SFT trained all weights"
    assert_equal(over(model_directory(below), model / "adapter"), model)
    lm = AutoModelForCausalLM.from_pretrained(model)
    before = AutoModelForCausalLM.from_pretrained(model_directory(below)).state_dict()
    moved = {name for name, tensor in lm.state_dict().items() if not tensor.equal(before[name])}
    assert moved
    assert all("_proj.weight" in name for name in moved)
    assert (
        "adapter/adapter_model.safetensors"
        in json.loads((model / "export.json").read_text())["files"]
    )


def test_it_is_another_rl_and_the_same_sft(run: Path, tmp_path: Path) -> None:
    whole = {key: value for key, value in IN_RL.items() if key != "model.adapter"}
    done = run_small(tmp_path, whole)
    assert done.returncode == 0, done.stdout[-4000:]
    found, expected = ({d.name for d in policies(each).values()} for each in (tmp_path, run))
    assert len(found & expected) == 1


def test_a_run_killed_at_every_point_ends_as_an_undisturbed_one(run: Path, tmp_path: Path) -> None:
    for point in POINTS:
        done = run_small(tmp_path, IN_RL, kill_at=point)
        assert done.returncode == -signal.SIGKILL, f"{point}: {done.stdout[-4000:]}"
    done = run_small(tmp_path, IN_RL)
    assert done.returncode == 0, done.stdout[-4000:]
    assert model_digests(tmp_path, "policy") == model_digests(run, "policy")


def test_sft_and_rl_make_one_adapter_of_the_base(run: Path, tmp_path: Path) -> None:
    """Of a model that a user brings; the reward model and the critic have their own."""
    base = exported(run)
    settings = {
        **{key: value for key, value in IN_RL.items() if key != "model.adapter"},
        "model.path": str(base),
        "model.from_scratch": None,
        "model.adapter": {"rank": 4, "alpha": 8},
        "rl.critic": {"init": "policy"},
        "rl.algorithm.advantage": "gae",
    }
    done = run_small(tmp_path, settings)
    assert done.returncode == 0, done.stdout[-4000:]
    config = json.loads((exported(tmp_path) / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["base_model_name_or_path"]) == (8, str(base))
    assert_equal(over(base, exported(tmp_path) / "adapter"), exported(tmp_path))
    assert (policies(tmp_path)["sft"] / "adapter").is_dir()
