"""A learner rank in a process of its own, for tests of several ranks without a cluster."""

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

from rlcore.cluster.types import WorkerTimeout, new_rendezvous_file


class Pending:
    def __init__(self, worker: "RankProcess", number: int) -> None:
        self._worker, self._number = worker, number

    def result(self, timeout_s: float) -> Any:
        return self._worker.answer(self._number, timeout_s)


class RankProcess:
    """A ``cluster.types.Worker`` whose object ``start("build", spec)`` builds, again and again."""

    def __init__(self, rank: int, world_size: int, rendezvous: str) -> None:
        self.name = f"rank {rank} of {world_size}"
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, rank, world_size, rendezvous)
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        self._sent = 0
        self._answers: dict[int, tuple[bool, Any]] = {}
        theirs.close()

    def start(self, method: str, *args: Any, **kwargs: Any) -> Pending:
        self._pipe.send((method, args, kwargs))
        self._sent += 1
        return Pending(self, self._sent - 1)

    def answer(self, number: int, timeout_s: float) -> Any:
        while number not in self._answers:
            if not self._pipe.poll(timeout_s):
                raise WorkerTimeout(f"{self.name} did not answer within {timeout_s:.0f} s")
            self._answers[len(self._answers)] = self._pipe.recv()
        good, value = self._answers[number]
        if not good:
            raise value
        return value

    def stop(self) -> None:
        self._process.kill()
        self._process.join(300)


def start_ranks(world_size: int) -> list[RankProcess]:
    rendezvous = new_rendezvous_file()
    return [RankProcess(rank, world_size, rendezvous) for rank in range(world_size)]


def serve(pipe: Connection, rank: int, world_size: int, rendezvous: str) -> None:
    """Answer calls until the pipe closes."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["OMP_WAIT_POLICY"] = "passive"
    from rlcore.learner.learner import Learner
    from rlcore.models import logprobs

    learner = None
    while True:
        try:
            method, args, kwargs = pipe.recv()
        except EOFError:
            return
        try:
            if method == "build":
                if learner is not None:
                    learner.close()
                    learner = None
                learner = Learner(args[0], rank, world_size, rendezvous)
                answer = None
            elif method == "chunks":
                answer, logprobs.CHUNK_LOGITS = logprobs.CHUNK_LOGITS, args[0]
            elif method == "modules":
                answer = {name.partition(".")[0] for name in sys.modules}
            elif method == "elements":
                assert learner is not None, "build comes first"
                held = (getattr(p, "ds_tensor", p) for p in learner._engine.lm.parameters())
                answer = sum(each.numel() for each in held)
            else:
                assert learner is not None, "build comes first"
                answer = vars(Learner)[method](learner, *args, **kwargs)
            pipe.send((True, answer))
        except Exception as error:  # noqa: BLE001 - carried to the test, which raises it
            pipe.send((False, error))
