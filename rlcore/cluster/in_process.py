"""A cluster of none: workers are built and called inline. For debugging, tests and machines without
Ray."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rlcore.cluster.types import Placement
from schemas.errors import UserError


@dataclass(frozen=True, slots=True)
class _Done:
    value: Any

    def result(self, timeout_s: float) -> Any:
        del timeout_s
        return self.value


class InProcessWorker:
    """Calls the object directly; ``start`` returns when the call is done."""

    def __init__(self, name: str, target: Any) -> None:
        self.name = name
        self.target = target

    def start(self, method: str, *args: Any, **kwargs: Any) -> _Done:
        """Run ``method`` now; its error is raised here."""
        return _Done(getattr(self.target, method)(*args, **kwargs))

    def stop(self) -> None:
        """Close the object."""
        self.target.close()


class InProcessCluster:
    """Implements ``Cluster`` in the calling process. Worker environments are not applied."""

    def __init__(self) -> None:
        self._workers: list[InProcessWorker] = []

    def spawn(self, target: str, *args: Any, name: str, placement: Placement) -> InProcessWorker:
        """Build ``target`` here. Raises the constructor's own error."""
        del placement
        module, _, attribute = target.partition(":")
        worker = InProcessWorker(name, getattr(import_module(module), attribute)(*args))
        self._workers.append(worker)
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

    def address(self) -> str:
        """Return the loopback address."""
        return "127.0.0.1"

    def close(self) -> None:
        """Close every worker."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
