"""A training state is the same in all ranks and ZeRO stages, and a damaged one is named."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlcore.learner.canonical import MOMENTS, WEIGHTS, SavedState
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import LearnerSpec, Term
from rlcore.models.weight_digest import state_digest
from schemas.errors import UserError
from tests.rlcore.learner.conftest import Waited
from tests.rlcore.learner.rank_process import start_ranks
from tests.rlcore.learner.samples import (
    assert_same_weights,
    make_batch,
    request_of,
    weights_of,
)

LAYOUTS = list(product((1, 2, 3), (0, 1, 2, 3)))  # ranks, ZeRO stage


def digest_of(directory: Path) -> tuple[str, dict[str, int | None]]:
    """The whole state, which depends neither on ranks nor on the stage."""
    state, found = SavedState(directory), {}
    for name, saved in sorted(state.parameters.items()):
        for role in (WEIGHTS, *MOMENTS) if saved.step is not None else (WEIGHTS,):
            found[f"{role} {name}"] = state.read(name, role, 0, prod(saved.shape))
    return state_digest(found.items()), {n: p.step for n, p in state.parameters.items()}


class Ranks:
    """One, two or three rank processes, built for any stage."""

    def __init__(self, world_size: int, spec: LearnerSpec) -> None:
        self._ranks, self._spec = start_ranks(world_size), spec

    def build(self, zero_stage: int) -> Waited:
        spec = replace(self._spec, zero_stage=zero_stage)
        for pending in [rank.start("build", spec) for rank in self._ranks]:
            pending.result(120)
        return Waited(LearnerPool(self._ranks, timeout_s=60))

    def stop(self) -> None:
        for rank in self._ranks:
            rank.stop()


@contextmanager
def groups(spec: LearnerSpec) -> Iterator[dict[int, Ranks]]:
    found = {size: Ranks(size, spec) for size in (1, 2, 3)}
    try:
        yield found
    finally:
        for ranks in found.values():
            ranks.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["policy", "value", "bfloat16"])
def test_every_layout_reads_every_other(kind, spec, value_dir, tmp_path):
    """Moments of a few real steps, eps small enough that they matter; a value head has a bias of
    one element, so that some rank has an empty part of it."""
    spec = replace(spec, eps=1e-8, lr=1e-3)
    if kind == "value":
        spec = replace(spec, head="value", model_dir=str(value_dir))
    layouts = [one for one in LAYOUTS if kind != "bfloat16" or one[1] > 0]
    spec = replace(spec, dtype="bfloat16" if kind == "bfloat16" else "float32")
    with groups(spec) as ranks:
        first = ranks[2].build(2)
        for step in range(2):
            first.step([Term(make_batch(6, step), objective(kind))], 1e-3)
        first.save(tmp_path / "2-2")
        digest = digest_of(tmp_path / "2-2")
        first.step([Term(make_batch(6, 7), objective(kind))], 1e-3)
        expected = weights_of(first)
        for size, stage in layouts:
            held = ranks[size].build(stage)
            held.load(tmp_path / "2-2")
            held.save(tmp_path / f"{size}-{stage}-copy")
            held.step([Term(make_batch(6, 7), objective(kind))], 1e-3)
            tolerance = 1e-6 if kind != "bfloat16" else 0.02  # a bit of a weight
            assert_same_weights(weights_of(held), expected, tolerance)
            for source in layouts:
                if (there := tmp_path / f"{source[0]}-{source[1]}-copy").exists():
                    held.load(there)
                    again = tmp_path / "again" / f"{size}-{stage}-{source}"
                    held.save(again)
                    assert digest_of(again) == digest, (size, stage, source)


def objective(kind: str):
    from rlcore.algorithms.objective import PolicyObjective, ValueObjective

    return ValueObjective() if kind == "value" else PolicyObjective()


@pytest.mark.parametrize(("before", "after"), [((2, 2), (1, 0)), ((1, 0), (2, 3))])
def test_other_ranks_continue(before, after, spec, learner_of, pair, tmp_path):
    """The version, the recorded update and the weights go over, and the next update is that of
    ranks that were not changed."""
    spec = replace(spec, eps=1e-8, lr=1e-3)

    def request(version, digest, seed):
        return replace(request_of(version, digest, seed), lrs=[1e-3, 1e-3])

    def built(layout):
        here = replace(spec, zero_stage=layout[1])
        return pair.build(here) if layout[0] == 2 else learner_of(here)

    first = built(before)
    recorded = first.update(request(0, "a", 0))
    first.save(tmp_path / "state")
    first.update(request(1, "b", 5))
    expected = weights_of(first)
    other = built(after)
    other.load(tmp_path / "state")
    other.save(tmp_path / "copy")
    assert digest_of(tmp_path / "copy") == digest_of(tmp_path / "state")
    assert other.update(request(0, "a", 0)).metrics == recorded.metrics, "the update is repeated"
    other.update(request(1, "b", 5))
    assert_same_weights(weights_of(other), expected)


def test_a_state_before_the_first_step_continues(spec, learner_of, pair, tmp_path):
    pair.build(spec).save(tmp_path)
    alone, fresh = learner_of(zero_stage=0), learner_of(zero_stage=0)
    alone.step([Term(make_batch(6), objective("policy"))], 0.1)  # its moments are to be forgotten
    alone.load(tmp_path)
    for who in (alone, fresh):
        who.step([Term(make_batch(6), objective("policy"))], 0.1)
    assert_same_weights(weights_of(alone), weights_of(fresh), 0.0)


def test_what_earlier_versions_wrote_without_zero_is_read(spec, pair, learner_of, tmp_path):
    """Every rank wrote the whole state."""
    group = pair.build(replace(spec, zero_stage=0))
    group.step([Term(make_batch(6), objective("policy"))], 0.1)
    group.save(tmp_path)
    digest = digest_of(tmp_path)
    first = json.loads((tmp_path / "rank00000.json").read_text())
    (tmp_path / "rank00001.json").write_text(json.dumps(first))
    for role in ("weights", "exp_avg", "exp_avg_sq"):
        whole = load_file(tmp_path / f"rank00000.{role}.safetensors")
        save_file(whole, tmp_path / f"rank00001.{role}.safetensors")
    learner = learner_of()
    learner.load(tmp_path)
    learner.save(tmp_path / "again")
    assert digest_of(tmp_path / "again") == digest


def _manifest(change):
    def edit(directory: Path) -> None:
        path = directory / "rank00001.json"
        manifest = json.loads(path.read_text())
        change(manifest, next(iter(manifest["parameters"].values())))
        path.write_text(json.dumps(manifest))

    return edit


def _moment(value: float):
    def edit(directory: Path) -> None:
        path = directory / "rank00001.exp_avg_sq.safetensors"
        tensors = load_file(path)
        next(iter(tensors.values()))[0] = value
        save_file(tensors, path)

    return edit


FAULTS = {
    "a gap": (
        _manifest(lambda all, one: one.update(start=one["start"] + 2, numel=one["numel"] - 2)),
        "were saved by no rank",
    ),
    "twice": (
        _manifest(lambda all, one: one.update(start=one["start"] - 2, numel=one["numel"] + 2)),
        "were saved twice",
    ),
    "the end": (
        _manifest(lambda all, one: one.update(numel=one["numel"] - 2)),
        "elements, of which .* were saved",
    ),
    "a step": (_manifest(lambda all, one: one.update(step=7)), "with step 2 and 7"),
    "a shape": (_manifest(lambda all, one: one.update(shape=[3])), "with shape .* and .3."),
    "a version": (_manifest(lambda all, one: all.update(version=9)), "saved version 9 of the wei"),
    "a moment": (_moment(float("nan")), "exp_avg_sq of .* is not finite"),
    "a rank": (lambda directory: (directory / "rank00001.json").unlink(), "rank00001.json does no"),
}


@pytest.fixture(scope="module")
def saved(pair, spec, tmp_path_factory) -> Path:
    """A state of two ranks, of which the second has a part of every parameter."""
    group = pair.build(replace(spec, zero_stage=3))
    for _ in range(2):
        group.step([Term(make_batch(6), objective("policy"))], 0.1)
    directory = tmp_path_factory.mktemp("state")
    group.save(directory)
    return directory


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_state_is_refused_by_name(fault, saved, learner_of, tmp_path):
    """Megatron filled what was missing with zeros: nothing showed but a worse model."""
    edit, sentence = FAULTS[fault]
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    edit(tmp_path)
    learner = learner_of()
    with pytest.raises(UserError, match=sentence):
        learner.load(tmp_path)


def test_parameters_of_other_step_counts_are_refused_where_they_are_stepped_as_one(
    learner_of, tmp_path
):
    learner = learner_of(zero_stage=0)
    learner.step([Term(make_batch(6), objective("policy"))], 0.1)
    learner.save(tmp_path)
    path = tmp_path / "rank00000.json"
    manifest = json.loads(path.read_text())
    entries = list(manifest["parameters"].values())
    entries[-1]["step"] = 5
    path.write_text(json.dumps(manifest))
    learner.load(tmp_path)  # without ZeRO each has a count
    with pytest.raises(UserError, match=r"after 1 steps and .* after 5, which ZeRO steps as one"):
        learner_of(zero_stage=1).load(tmp_path)
    # One that never had a gradient has no moments: they are zero.
    entries[-1]["step"] = None
    path.write_text(json.dumps(manifest))
    one = learner_of(zero_stage=1)
    one.load(tmp_path)
    one.save(tmp_path / "again")
    name = list(manifest["parameters"])[-1]
    state = SavedState(tmp_path / "again")
    numel = entries[-1]["numel"]
    assert torch.equal(state.read(name, "exp_avg", 0, numel), torch.zeros(numel))
    assert state.parameters[name].step == 1
