"""An engine of which one in a run, the first that is built, takes five times its time: unequal
engines for a study, without a knob for it in a recipe. A module of its own, as the engines'
processes import it:

    rl-pipeline study async-gepo -o hardware.rollout.engine=tests.bench.slowed_one:OneSlowed \\
        -o hardware.rollout.max_num_seqs=32     # what an engine has pulled, the other cannot take
"""

import fcntl
import hashlib
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from time import perf_counter, sleep
from typing import IO, Any

from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec

SLOWED = 5.0


class OneSlowed(TransformersEngine):
    """``TransformersEngine``, slowed where no other of this model is."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._place = _first(spec.model_dir)
        if self._place is not None:
            self.generate = slowed(self.generate, SLOWED)

    def close(self) -> None:
        """See ``RolloutEngine``."""
        super().close()
        if self._place is not None:
            self._place.close()


def slowed(step: Callable[..., Any], times: float) -> Callable[..., Any]:
    """Return ``step``, which then takes ``times`` as long."""

    def longer(*arguments: Any) -> Any:
        begun = perf_counter()
        outputs = step(*arguments)
        sleep((times - 1) * (perf_counter() - begun))
        return outputs

    return longer


def _first(model: str) -> IO[bytes] | None:
    """Return what marks the first engine of ``model`` on this machine for as long as it is open;
    None in the others. The mark of a process ends with it."""
    name = hashlib.sha256(str(model).encode()).hexdigest()[:16]
    place = (Path(gettempdir()) / f"slowed-{name}.lock").open("wb")
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        place.close()
        return None
    return place
