"""A checkpoint continues bit for bit, what is no checkpoint of this learner is refused, and updates
are made once, of the version they were made for."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from rlcore.algorithms.objective import PolicyObjective
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import Term, VersionConflict
from schemas.errors import UserError
from tests.rlcore.learner.conftest import Waited
from tests.rlcore.learner.rank_process import start_ranks
from tests.rlcore.learner.samples import make_batch, request_of


def test_resume_in_a_new_process_is_bit_exact(spec, learner_of, tmp_path):
    """Kill -9 after a checkpoint, continue in a fresh process: the same weights, bit for bit."""
    (worker,) = ranks = start_ranks(1)
    try:
        for stage in (0, 1):
            learner = learner_of(zero_stage=stage, eps=1e-8)
            first = learner.update(request_of(0, "a"))
            learner.save(tmp_path / str(stage))
            after = learner.update(request_of(1, "b", seed=5))
            worker.start("build", replace(spec, zero_stage=stage, eps=1e-8)).result(120)
            resumed = Waited(LearnerPool(ranks, timeout_s=60))
            resumed.load(tmp_path / str(stage))
            assert resumed.update(request_of(0, "a")) == first, "the recorded update is lost"
            assert resumed.update(request_of(1, "b", seed=5)) == after
            assert resumed.stamp() == learner.stamp(), f"ZeRO {stage}"
    finally:
        worker.stop()


@pytest.mark.parametrize("steps_before", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_resume_in_bfloat16_is_bit_exact(zero_stage, steps_before, learner_of, tmp_path):
    """DeepSpeed keeps the float32 weights of bfloat16 models elsewhere for each stage; the step
    size is one that bfloat16 weights alone would lose."""

    def build():
        return learner_of(dtype="bfloat16", zero_stage=zero_stage, eps=1e-8, lr=1e-5)

    learner = build()
    for step in range(steps_before):
        learner.update(request_of(step, "abc"[step]))
    learner.save(tmp_path)
    after = [learner.update(request_of(steps_before + n, f"n{n}", seed=n)) for n in range(3)]
    for resumed in (learner, build()):  # over weights that continued, and in a new learner
        resumed.load(tmp_path)
        again = [resumed.update(request_of(steps_before + n, f"n{n}", seed=n)) for n in range(3)]
        assert again == after
        assert resumed.stamp() == learner.stamp()


class _Command:
    """Pickled, it makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_nothing_in_a_checkpoint_is_run(zero_stage, learner_of, tmp_path):
    """Who can write to a store must not be able to run commands where a run resumes."""
    learner = learner_of(zero_stage=zero_stage)
    learner.update(request_of(0, "a"))  # without a step there are no moments to be read
    directory, ran = tmp_path / "checkpoint", tmp_path / "ran"
    learner.save(directory)
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(pickle.dumps(_Command(ran)))
        with pytest.raises(UserError, match="damaged"):
            learner.load(directory)
        path.write_bytes(whole)
    learner.load(directory)
    assert not ran.exists()


def test_a_pickle_is_no_checkpoint(learner_of, tmp_path):
    (tmp_path / "rank00000.pt").write_bytes(pickle.dumps(_Command(tmp_path / "ran")))
    with pytest.raises(UserError, match="does not exist; give a directory that a learner saved"):
        learner_of().load(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_a_checkpoint_of_another_model_is_refused(zero_stage, learner_of, tmp_path):
    """By its manifest or by its tensors: one element would be spread over a whole parameter."""
    learner = learner_of(zero_stage=zero_stage)
    learner.update(request_of(0, "a"))
    learner.save(tmp_path)
    manifest = tmp_path / "rank00000.json"
    whole = manifest.read_bytes()
    saved = json.loads(whole)
    saved["parameters"].popitem()
    manifest.write_text(json.dumps(saved))
    with pytest.raises(UserError, match="holds other parameters than this model"):
        learner.load(tmp_path)
    manifest.write_text("[]")
    with pytest.raises(UserError, match=r"rank00000\.json is missing or damaged"):
        learner.load(tmp_path)
    manifest.write_bytes(whole)
    for role in ("weights", "exp_avg_sq"):
        path = tmp_path / f"rank00000.{role}.safetensors"
        tensors = load_file(path)
        name = next(iter(tensors))
        save_file({**tensors, name: tensors[name][:1]}, path)
        with pytest.raises(UserError, match=rf"{role}.* damaged .{name} has .1. of \d+ elements"):
            learner.load(tmp_path)
        save_file(tensors, path)
    learner.load(tmp_path)


def test_foreign_checkpoints_are_refused(learner_of, tmp_path):
    learner_of(dtype="bfloat16").save(tmp_path)
    with pytest.raises(UserError, match="saved with dtype = bfloat16 and this learner has float32"):
        learner_of().load(tmp_path)
    with pytest.raises(UserError, match=r"rank00000\.json does not exist"):
        learner_of().load(tmp_path / "missing")


def test_update_is_a_compare_and_set(learner_of):
    """A retried task gets the recorded result; a stale one is refused; neither steps twice."""
    learner = learner_of()
    result = learner.update(request_of(0, "a"))
    stamp = learner.stamp()
    assert (result.version, stamp.version, len(result.steps)) == (1, 1, 2)
    assert result.metrics["actor/lr"] == pytest.approx(0.045)
    assert result.metrics["actor/ratio_max"] == max(s["actor/ratio_max"] for s in result.steps)
    assert learner.update(request_of(0, "a")) == result
    assert learner.stamp() == stamp
    for version, digest in [(0, "b"), (2, "a"), (2, "c")]:
        with pytest.raises(VersionConflict, match=rf"requested for version {version} .* version 1"):
            learner.update(request_of(version, digest))
    assert learner.stamp() == stamp
    assert learner.update(request_of(1, "b", seed=5)).version == 2


def test_update_that_broke_off_must_be_reloaded(learner_of, tmp_path):
    """Weights between two versions must not be trained on or called by either version."""
    learner = learner_of()
    learner.save(tmp_path / "checkpoint")
    good = request_of(0, "a")
    poor = [Term(replace(make_batch(6), per_token={}), PolicyObjective())]
    with pytest.raises(UserError, match="reads per_token"):
        learner.update(replace(good, mini_batches=[good.mini_batches[0], poor]))
    with pytest.raises(VersionConflict, match=r"failed between .* load a checkpoint"):
        learner.update(good)
    with pytest.raises(UserError, match="does not exist"):  # what it holds stays unknown
        learner.load(tmp_path / "none")
    with pytest.raises(VersionConflict, match="load a checkpoint"):
        learner.update(good)
    learner.load(tmp_path / "checkpoint")
    assert learner.update(good).metrics == learner_of().update(good).metrics
