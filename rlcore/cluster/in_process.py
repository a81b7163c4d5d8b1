"""A cluster without processes: workers are built and called inline. For debugging, tests and
machines without Ray."""

from concurrent.futures import Future
from typing import Any

import torch

from rlcore.cluster.types import Placement, new_rendezvous_file
from rlcore.cluster.worker_object import Shell
from schemas.errors import UserError


class InProcessWorker:
    """Calls the object of ``shell`` directly; every method returns once its work is done."""

    def __init__(self, name: str, shell: Shell) -> None:
        self.name, self._shell = name, shell

    @classmethod
    def of(cls, name: str, built: Any) -> "InProcessWorker":
        """Return a worker around the object ``built`` by the caller."""
        return cls(name, Shell("", built))

    def start(self, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``method`` now; ``result`` raises its error."""
        answer: Future[Any] = Future()
        try:
            answer.set_result(self._shell.call(method, args, kwargs))
        except Exception as error:  # noqa: BLE001 - raised by ``result``
            answer.set_exception(error)
        return answer

    def stop(self) -> None:
        """Close the object."""
        self._shell.close()


class InProcessCluster:
    """Implements ``Cluster`` in the calling process. Worker environments are not applied."""

    def __init__(self) -> None:
        self._workers: list[InProcessWorker] = []

    def spawn(self, target: str, *args: Any, name: str, placement: Placement) -> InProcessWorker:
        """Build ``target`` here."""
        del placement
        shell = Shell(target)
        shell.build(args)
        self._workers.append(InProcessWorker(name, shell))
        return self._workers[-1]

    def num_gpus(self) -> float:
        """Return the GPUs torch sees in this process."""
        return float(torch.cuda.device_count())

    def place(self, placement: Placement, count: int) -> list[Placement]:
        """Return ``placement`` for each. Raises UserError unless torch sees GPUs for all."""
        needed = count * placement.gpus
        if needed > self.num_gpus():
            raise UserError(
                f"hardware needs {needed:g} GPUs but this process sees {self.num_gpus():g};"
                " set hardware.device to cpu, or join a machine with GPUs"
            )
        return [placement] * count

    def rendezvous(self, first: Placement) -> str:
        """Return the URL of a new file."""
        del first
        return new_rendezvous_file()

    def close(self) -> None:
        """Close every worker."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
