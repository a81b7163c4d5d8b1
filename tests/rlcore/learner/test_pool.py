"""Several ranks answer as one: every row gets its own answer, in the order it was asked."""

import resource
import threading
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from rlcore.algorithms.objective import SftObjective
from rlcore.cluster.in_process import InProcessWorker
from rlcore.cluster.types import WorkerTimeout
from rlcore.learner.pool import LearnerOutOfMemory, LearnerPool, raising_out_of_memory
from rlcore.learner.spec import Term, TokenScores, UpdateRequest, UpdateResult
from rlcore.models.packing import Sequences
from tests.rlcore.learner.samples import make_batch

SAID = "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"


class Rank:
    """Answers with what it was given: a token's score is its id."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.tokens: list[int] = []

    def logprobs(
        self, sequences: Sequences, temperature: float, *, entropy: bool = False, **options: Any
    ) -> TokenScores:
        del options
        self.tokens.append(sequences.num_tokens)
        rows = [ids.astype(np.float32) for ids in sequences.token_ids]
        return TokenScores(rows, [row * temperature for row in rows] if entropy else [], [])

    def values(self, sequences: Sequences, *, targets: str) -> list[np.ndarray]:
        del targets
        return [ids.astype(np.float32) for ids in sequences.token_ids]

    def step(self, terms: list[Term], lr: float) -> dict[str, float]:
        return {"rows": float(len(terms[0].sequences)), "lr": lr}

    def update(self, request: UpdateRequest) -> UpdateResult:
        kept = [
            np.concatenate([*terms[0].sequences.token_ids, np.zeros(0)]).astype(np.float32)
            for terms in request.mini_batches
        ]
        return UpdateResult(1, {"rank": float(self.number)}, [], kept)

    def packing_warning(self) -> str | None:
        return "rows are padded"

    def stamp(self) -> str:
        return f"rank {self.number}"


class Slow:
    """A worker whose ``save`` is over when ``end`` is called; other calls are answered at once."""

    name = "learner"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._over = threading.Event()
        self.error: Exception | None = None

    def start(self, method: str, *arguments: Any, **options: Any) -> "Slow":
        self.asked.append(method)
        return self

    def end(self, error: Exception | None = None) -> None:
        self.error = error
        self._over.set()

    def result(self, timeout_s: float) -> Any:
        if self.asked[-1] == "save":
            if not self._over.wait(timeout_s):
                raise WorkerTimeout("save")
            if self.error is not None:
                raise self.error
        return None

    def stop(self) -> None:
        self.end()


def pool_of(*ranks: Rank, **options: Any) -> LearnerPool:
    return LearnerPool([InProcessWorker.of("learner", rank) for rank in ranks], **options)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("num_rows", [1, 2, 7, 12])
def test_answers_come_back_in_the_order_asked(num_ranks: int, num_rows: int) -> None:
    """A log-prob under another row's id turns its ratio into noise."""
    batch, pool = make_batch(num_rows), pool_of(*(Rank() for _ in range(num_ranks)))
    scores = pool.logprobs(batch, 2.0, entropy=True).result()
    for found in (scores.logprobs, pool.values(batch).result(), [e / 2 for e in scores.entropies]):
        assert [row.tolist() for row in found] == [ids.tolist() for ids in batch.token_ids]


def test_entropies_that_were_not_asked_for_are_empty() -> None:
    scores = pool_of(Rank(), Rank()).logprobs(make_batch(4)).result()
    assert (scores.entropies, scores.kls) == ([], [])


def test_ranks_hold_about_equal_tokens() -> None:
    """All wait for the slowest in every pass."""
    ranks = [Rank(), Rank()]
    batch = make_batch(40)
    pool_of(*ranks).logprobs(batch).result()
    (one,), (other,) = (rank.tokens for rank in ranks)
    assert one + other == batch.num_tokens
    assert abs(one - other) <= int(batch.lengths.max())


def test_recorded_log_probs_of_an_update_are_in_the_requests_order() -> None:
    batches = [make_batch(7, seed=step) for step in range(2)]
    terms = [[Term(batch, SftObjective())] for batch in batches]
    request = UpdateRequest(0, "d", terms, [0.1, 0.1])
    result = pool_of(Rank(0), Rank(1), Rank(2)).update(request).result()
    assert result.metrics == {"rank": 0.0}
    for found, batch in zip(result.old_logprobs, batches, strict=True):
        assert found.tolist() == np.concatenate(batch.token_ids).tolist()


def test_every_rank_steps_at_the_same_rate_on_its_own_share() -> None:
    seen = []

    class Watched(Rank):
        def step(self, terms: list[Term], lr: float) -> dict[str, float]:
            seen.append((len(terms[0].sequences), lr))
            return super().step(terms, lr)

    pool_of(Watched(), Watched()).step([Term(make_batch(5), SftObjective())], 0.25)
    assert sum(rows for rows, _ in seen) == 5
    assert [lr for _, lr in seen] == [0.25, 0.25]


def test_how_rows_are_packed_is_said_once() -> None:
    said: list[str] = []
    pool = pool_of(Rank(), warn=said.append)
    for _ in range(2):
        pool.values(make_batch(3)).result()
    assert said == ["rows are padded"]


def test_an_error_of_a_rank_arrives_as_it_was_said() -> None:
    class Broken(Rank):
        def stamp(self) -> str:
            raise ValueError("no such weights")

    with pytest.raises(ValueError, match="no such weights"):
        pool_of(Rank(), Broken()).stamp()


def test_a_call_waits_for_the_save_before_it() -> None:
    """The silence of a rank that saves for a minute would pass for a hung call."""
    slow = Slow()
    pool = LearnerPool([slow])
    save = pool.save("folder")
    later = threading.Thread(target=pool.stamp)
    later.start()
    time.sleep(0.2)
    assert slow.asked == ["save"]
    slow.end()
    later.join(300)
    save.result()
    assert slow.asked == ["save", "stamp"]


def test_the_error_of_a_save_is_its_own_waiters() -> None:
    """The next call would otherwise end the run in the name of another method."""
    slow = Slow()
    pool = LearnerPool([slow])
    save = pool.save("folder")
    slow.end(OSError("the disk is full"))
    pool.stamp()
    with pytest.raises(OSError, match="the disk is full"):
        save.result()


@pytest.mark.parametrize("method", ["logprobs", "values", "step", "update"])
def test_in_a_pass_it_names_the_call_and_what_was_said(method: str) -> None:
    with pytest.raises(LearnerOutOfMemory) as raised, raising_out_of_memory(method):
        raise RuntimeError(f"the worker says\n  {SAID}\nand more")
    assert str(raised.value) == f"memory ran out in the learner's {method}: {SAID}"


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("save", MemoryError("cannot allocate memory")),  # smaller passes need as much
        ("publish", RuntimeError(SAID)),
        ("update", RuntimeError("a bug")),
        ("update", ValueError("out of range")),
    ],
)
def test_any_other_error_passes(method: str, error: Exception) -> None:
    with pytest.raises(type(error)) as raised, raising_out_of_memory(method):
        raise error
    assert raised.value is error


def _allocate(answer: Connection) -> None:
    import torch

    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
    try:
        with raising_out_of_memory("update"):
            torch.ones(1 << 32)
    except LearnerOutOfMemory as error:
        answer.send(str(error))
    else:
        answer.send("")


@pytest.mark.slow
def test_what_torch_really_says_is_recognised() -> None:
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_allocate, args=(theirs,))
    process.start()
    assert ours.poll(300)
    assert ours.recv().startswith("memory ran out in the learner's update: ")
    process.join(300)
