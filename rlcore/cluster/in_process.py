"""A cluster without processes: workers are built and called inline. For debugging, tests and
machines without Ray."""

from dataclasses import dataclass
from typing import Any

from rlcore.cluster.targets import class_of
from rlcore.cluster.types import Placement, new_rendezvous_file
from schemas.errors import UserError


@dataclass(frozen=True, slots=True)
class _Done:
    value: Any

    def result(self, timeout_s: float) -> Any:
        del timeout_s
        return self.value


class InProcessWorker:
    """Calls the object directly; every method returns once its work is done."""

    def __init__(self, name: str, target: str) -> None:
        self.name = name
        self._target = target
        self._object: Any = None

    @classmethod
    def of(cls, name: str, built: Any) -> "InProcessWorker":
        """Return a worker around the object ``built`` by the caller."""
        worker = cls(name, f"{type(built).__module__}:{type(built).__qualname__}")
        worker._object = built
        return worker

    def build(self, *args: Any) -> None:
        """Build the object here. Raises the constructor's own error."""
        self.clear()
        self._object = class_of(self._target)(*args)

    def start(self, method: str, *args: Any, **kwargs: Any) -> _Done:
        """Run ``method`` now; its error is raised here."""
        return _Done(getattr(self._object, method)(*args, **kwargs))

    def clear(self) -> _Done:
        """Close the object; its error is raised here."""
        closed, self._object = self._object, None
        if closed is not None:
            closed.close()
        return _Done(None)

    def stop(self) -> None:
        """Close the object."""
        self.clear()


class InProcessCluster:
    """Implements ``Cluster`` in the calling process. Worker environments are not applied."""

    def __init__(self) -> None:
        self._workers: list[InProcessWorker] = []

    def host(self, target: str, *, name: str, placement: Placement) -> InProcessWorker:
        """Return a host in this process; nothing is imported before its first ``build``."""
        del placement
        worker = InProcessWorker(name, target)
        self._workers.append(worker)
        return worker

    def spawn(self, target: str, *args: Any, name: str, placement: Placement) -> InProcessWorker:
        """Build ``target`` here. Raises the constructor's own error."""
        worker = self.host(target, name=name, placement=placement)
        worker.build(*args)
        return worker

    def num_gpus(self) -> float:
        """Return the GPUs torch sees in this process."""
        import torch

        return float(torch.cuda.device_count())

    def require_gpus(self, count: float) -> None:
        """Raise UserError unless torch sees ``count`` GPUs."""
        if count > self.num_gpus():
            raise UserError(
                f"hardware needs {count:g} GPUs but this process sees {self.num_gpus():g};"
                " set hardware.device to cpu, or join a machine with GPUs"
            )

    def rendezvous(self) -> str:
        """Return the URL of a new file."""
        return new_rendezvous_file()

    def close(self) -> None:
        """Close every worker."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
