"""A tiny model, batches for it, and learners of one and two ranks."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read once, when torch loads OpenMP

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlcore.learner.learner import Learner
from rlcore.learner.pool import LearnerFuture, LearnerPool
from rlcore.learner.spec import LearnerSpec
from rlcore.models.packing import Sequences
from tests.rlcore.learner.algorithms import ALGORITHMS, suited
from tests.rlcore.learner.rank_process import RankProcess, start_ranks
from tests.rlcore.learner.samples import make_batch, write_tiny_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's directory."""
    path = tmp_path_factory.mktemp("model")
    write_tiny_model(path)
    return path


@pytest.fixture(scope="session")
def value_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier with a score that is not 0."""
    path = tmp_path_factory.mktemp("value")
    write_tiny_model(path, seed=8, head="value")
    return path


@pytest.fixture(scope="session")
def reference_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another policy of the same shape."""
    path = tmp_path_factory.mktemp("reference")
    write_tiny_model(path, seed=9)
    return path


@pytest.fixture(scope="session")
def spec(model_dir: Path) -> LearnerSpec:
    """AdamW with eps = 1 moves by about the gradient: weights after a step show gradient errors
    that Adam's usual normalisation would hide or magnify."""
    return LearnerSpec(
        model_dir=str(model_dir),
        lr=0.1,
        eps=1.0,
        grad_clip=0.5,
        micro_batch_tokens=4096,
        collective_timeout_s=60,
    )


@pytest.fixture
def batch() -> Sequences:
    return make_batch(12)


@pytest.fixture
def learner_of(spec: LearnerSpec) -> Iterator[Callable[..., Learner]]:
    """Build learners of ``spec`` with changes; freed after the test."""
    built: list[Learner] = []

    def build(base: LearnerSpec = spec, **changes: object) -> Learner:
        built.append(Learner(replace(base, **changes)))
        return built[-1]

    yield build
    for learner in built:
        learner.close()


@pytest.fixture(params=ALGORITHMS)
def algorithm(request: pytest.FixtureRequest) -> str:
    """Each algorithm's name in turn."""
    return request.param


@pytest.fixture
def suited_spec(
    algorithm: str, spec: LearnerSpec, value_dir: Path, reference_dir: Path
) -> LearnerSpec:
    """``spec`` with the model that ``algorithm`` trains."""
    return suited(spec, algorithm, value_dir, reference_dir)


@pytest.fixture
def suited_learner(
    suited_spec: LearnerSpec, learner_of: Callable[..., Learner]
) -> Callable[..., Learner]:
    """Build learners that ``algorithm`` can train."""

    def build(**changes: object) -> Learner:
        return learner_of(suited_spec, **changes)

    return build


class Waited:
    """A pool of which each call waits, as of a lone ``Learner``."""

    def __init__(self, pool: LearnerPool) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            found = getattr(self._pool, name)(*arguments, **options)
            return found.result() if isinstance(found, LearnerFuture) else found

        return call


class Pair:
    """Two ranks that can be rebuilt, and restarted as new processes."""

    def __init__(self) -> None:
        self._ranks: list[RankProcess] = []

    def build(self, spec: LearnerSpec) -> "Waited":
        if not self._ranks:
            self._ranks = start_ranks(2)
        pendings = [rank.start("build", spec) for rank in self._ranks]
        for pending in pendings:
            pending.result(120)
        return Waited(
            LearnerPool(self._ranks, timeout_s=60, sequence_parallel=spec.sequence_parallel)
        )

    @contextmanager
    def chunked(self, logits: int) -> Iterator[None]:
        """Let ranks cut passes of more than ``logits`` logits into chunks."""
        self._ranks = self._ranks or start_ranks(2)
        before = [rank.start("chunks", logits).result(120) for rank in self._ranks]
        try:
            yield
        finally:
            for rank, limit in zip(self._ranks, before, strict=True):
                rank.start("chunks", limit).result(120)

    def modules(self) -> set[str]:
        """Top-level packages loaded by rank 0."""
        return self._ranks[0].start("modules").result(60)

    def elements(self) -> int:
        """Elements of the weights that rank 0 holds."""
        return self._ranks[0].start("elements").result(60)

    def stop(self) -> None:
        for rank in self._ranks:
            rank.stop()
        self._ranks = []


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    ranks = Pair()
    yield ranks
    ranks.stop()
