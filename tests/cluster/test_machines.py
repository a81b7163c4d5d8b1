"""A run over two machines, each with its own memory, processes and cache: what a user of two hosts
gets, and what of it a loss of one leaves."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file

from rlcore.learner.checkpoints import KIND as CHECKPOINT
from rlcore.models.files import MODEL_FOLDER
from rlcore.models.smollm2 import FOLDER, write_smollm2
from rlcore.store.artifacts import ArtifactStore
from tests.cluster.machines import ROOT, Machines, two_machines
from tests.flows.small_run import SMALL

pytestmark = [pytest.mark.machines, pytest.mark.slow, pytest.mark.timeout(1200)]
SECRET = "planted-0123456789-planted"
NAMED_S = 60.0  # until a run says which host is gone
SHORT: dict[str, Any] = {
    **SMALL,
    "sft.max_steps": 4,
    "rl.iterations": 3,
    "rl.validation.every": 3,
    "hardware.device": "cpu",
    "hardware.rollout.engine": "transformers",
    "hardware.rollout.engines": 2,
    "hardware.learner.ranks": 2,
    "hardware.learner.zero_stage": 2,
    "hardware.learner.threads": 1,
    "hardware.restarts": 0,
}
ONE_RANK = {"hardware.learner.ranks": 1, "hardware.learner.zero_stage": "auto"}
REAL: dict[str, Any] = {
    "model.path": str(ROOT / FOLDER),
    "rl.iterations": 3,
    "rl.rollout.prompts": 2,
    "rl.rollout.samples": 4,
    "rl.rollout.max_new_tokens": 16,
    "rl.validation.every": 3,
    "rl.validation.prompts": 4,
    "hardware.device": "cpu",
    "hardware.rollout.engine": "transformers",
    "hardware.rollout.engines": 2,
    "hardware.learner.threads": 1,
    "hardware.restarts": 0,
    "tracking.wandb": False,
}


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with two_machines() as both:
        yield both


@pytest.fixture(scope="module")
def bucket(machines: Machines) -> Iterator[str]:
    """The URL of a bucket that both machines reach, on an S3 server of the first."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=machines.addresses[0], port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("machines")
        yield "s3://machines"
    server.stop()


def started(
    machines: Machines,
    name: str,
    overrides: dict[str, Any],
    *options: str,
    recipe: str = "quickstart",
) -> "subprocess.Popen[str]":
    """Start a run on the first machine, in its own folder; quickstart is made ``SHORT``."""
    folder = machines.first / name
    folder.mkdir(exist_ok=True)
    short = SHORT if recipe == "quickstart" else {}
    given = [f"{key}={json.dumps(value)}" for key, value in {**short, **overrides}.items()]
    words = [word for one in given for word in ("-o", one)]
    store = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "flows.cli", "run", recipe, *options, *words],
        cwd=folder,
        env={**machines.environment(machines.first), **store, "PREFECT_LOGGING_LEVEL": "INFO"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(
    machines: Machines, name: str, overrides: dict[str, Any], recipe: str = "quickstart"
) -> None:
    """Run to the end of RL, which succeeds."""
    with started(machines, name, overrides, "--until", "rl", recipe=recipe) as running:
        text, _ = running.communicate(timeout=1800)
    assert running.returncode == 0, text[-6000:]


def planned(machines: Machines, overrides: dict[str, Any]) -> str:
    """Return what the dry run prints."""
    with started(machines, "plan", overrides, "--dry-run") as running:
        return running.communicate(timeout=600)[0]


def read_until(running: "subprocess.Popen[str]", words: str) -> None:
    """Read what a run prints until a line has ``words``."""
    assert running.stdout is not None
    seen: list[str] = []
    for line in running.stdout:
        seen.append(line)
        if words in line:
            return
    raise AssertionError("".join(seen)[-6000:])


def run_until_lost(machines: Machines, name: str, overrides: dict[str, Any], after: int) -> None:
    """Run until the second machine is gone, after iteration ``after``; to the end where the run may
    restart. The machine is back when this returns."""
    with started(machines, name, overrides, "--until", "rl") as running:
        read_until(running, f"iteration {after}/3")
        end = time.monotonic() + NAMED_S  # its checkpoint is written while the next one samples
        while not any(
            key.endswith(f"/{after:06d}")
            for key in ArtifactStore(overrides["store"]).keys(CHECKPOINT)
        ):
            assert time.monotonic() < end, f"no checkpoint of iteration {after}"
            time.sleep(0.1)
        machines.kill_second()
        began = time.monotonic()
        read_until(running, f"node {machines.addresses[1]} of the Ray cluster is lost")
        assert time.monotonic() - began < NAMED_S
        text, _ = running.communicate(timeout=900)
    assert (running.returncode == 0) == bool(overrides["hardware.restarts"]), text[-6000:]


def contents(store: str, kind: str) -> dict[str, str]:
    """Return key -> content of every artifact of ``kind``."""
    return {m.key: m.sha256 for m in ArtifactStore(store).manifests() if m.kind == kind}


def policies(store: str) -> dict[str, str]:
    """Return key -> content of every policy, the trained one among them."""
    made = contents(store, "policy")
    assert len(made) == 2, "of SFT and RL"
    return made


def trained_weights(store: str) -> dict[str, np.ndarray]:
    """Return the tensors of the policy that RL ended with."""
    kept = ArtifactStore(store)
    made = [m for m in kept.manifests() if m.kind == "policy"]
    last = max(made, key=lambda manifest: manifest.created_at)
    return load_file(kept.directory(last.ref()) / MODEL_FOLDER / "model.safetensors")


def seconds_of_syncs(store: str) -> list[float]:
    """Return the seconds of each sync of RL."""
    kept = ArtifactStore(store)
    tables = [kept.table(m.ref(), "metrics") for m in kept.manifests() if m.kind == "metrics"]
    return (
        pl.concat(tables).filter(pl.col("name") == "timing_s/sync").sort("step")["value"].to_list()
    )


def test_the_plan_says_what_lies_where_and_refuses_a_folder_as_store(
    machines: Machines, bucket: str
) -> None:
    """The second host would look for the model in a folder of its own."""
    ray = {"hardware.ray_address": machines.ray_address}
    first, second = machines.addresses
    plan = planned(machines, {**ray, "store": f"{bucket}/plan"})
    assert f"  {first}: policy rank 0, rollout engine 0\n" in plan
    assert f"  {second}: policy rank 1, rollout engine 1\n" in plan
    assert f"  weights: in memory on {first}, through Ray's object store to {second}\n" in plan
    refused = planned(machines, {**ray, "store": "runs/store"})
    assert refused.startswith("error: store = 'runs/store' is a folder of one host, and workers")
    assert refused.count("\n") == 1


OTHER = """
import sys
from rlcore.cluster.ray_cluster import RayCluster
from rlcore.cluster.types import Placement
cluster = RayCluster(sys.argv[1], store="s3://nowhere/at-all")
cluster._hosts._software["torch"] = "0.1"
cluster.place(Placement(threads=1, spread=True), 2)
"""


def test_a_host_with_another_version_is_named_before_a_worker_starts(machines: Machines) -> None:
    """Its ranks would compute other numbers."""
    asked = subprocess.run(
        [sys.executable, "-c", OTHER, machines.ray_address],
        env=machines.environment(machines.first),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    last = asked.stderr.strip().rpartition("\n")[2]
    assert f"UserError: node {machines.addresses[1]} runs torch 2." in last, asked.stderr
    assert ", the flow 0.1; install the same on all nodes" in last


def test_two_machines_learn_what_one_learns_and_one_goes_on_without_the_other(
    prefect_server: str, machines: Machines, bucket: str
) -> None:
    """Who adds a host wants the same policy sooner, and no wait for a host that is gone."""
    del prefect_server
    ray = {"hardware.ray_address": machines.ray_address}
    run(machines, "alone", {"store": f"{bucket}/alone"})
    undisturbed = policies(f"{bucket}/alone")
    both = f"{bucket}/both"
    run(machines, "both", {**ray, "store": both})
    assert policies(both) == undisturbed

    logs = [
        path for each in (machines.first, machines.second) for path in (each / "ray").rglob("*")
    ]
    files = [path for path in logs if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]

    # By itself, with the machine that is left; and by the same command, where it may not restart.
    for restarts in (1, 0):
        name = f"killed-{restarts}"
        killed = {**ray, "store": f"{bucket}/{name}", "hardware.restarts": restarts}
        run_until_lost(machines, name, killed, after=1)
        if not restarts:
            run(machines, name, killed)
        assert policies(f"{bucket}/{name}") == undisturbed
        machines.start_second()


def test_with_one_rank_in_place_of_two_the_next_step_is_the_same(
    prefect_server: str, machines: Machines, bucket: str
) -> None:
    """Who has lost a host for good continues on the one that is left, with what it has room for."""
    del prefect_server
    ray = {"hardware.ray_address": machines.ray_address}
    both, fewer = f"{bucket}/both", f"{bucket}/fewer"
    run(machines, "both", {**ray, "store": both})
    killed = {**ray, "store": fewer, "hardware.restarts": 0}
    run_until_lost(machines, "fewer", killed, after=2)
    run(machines, "fewer", {**killed, **ONE_RANK})
    assert set(contents(fewer, "rollouts").values()) == set(contents(both, "rollouts").values())
    expected, found = trained_weights(both), trained_weights(fewer)
    for tensor, values in expected.items():
        np.testing.assert_allclose(found[tensor], values, rtol=0, atol=1e-6, err_msg=tensor)
    machines.start_second()


def test_a_real_model_reaches_the_engines_of_both_machines(
    prefect_server: str, machines: Machines, bucket: str
) -> None:
    """Its weights are nine parts, of which an engine has to find all; their digest is compared at
    each sync. Seconds of syncs: ``-s`` shows them."""
    del prefect_server
    if not (ROOT / FOLDER).is_dir():
        write_smollm2(ROOT / FOLDER)
    took = {}
    for name, ray in (("one", {}), ("two", {"hardware.ray_address": machines.ray_address})):
        store = f"{bucket}/real-{name}"
        run(machines, f"real-{name}", {**REAL, **ray, "store": store}, "smollm2-quickstart")
        took[name] = seconds_of_syncs(store)
        assert len(took[name]) == REAL["rl.iterations"]
    print(f"seconds of a sync on one machine {took['one']}, on two {took['two']}")
