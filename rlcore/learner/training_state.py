"""The training state: which version the weights have, and all of it as files.

Updates are a compare-and-set on the version, and a repeated request steps once only. The files hold
the optimizer's state in canonical form (``rlcore.learner.canonical``), the states of the random
generators, the version and the last update.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from rlcore.learner.canonical import SavedState, read_tensors, role_file, stem_of
from rlcore.learner.engine import TrainEngine
from rlcore.learner.spec import UpdateRequest, UpdateResult, VersionConflict
from schemas.errors import UserError

RNG = "rng"  # role of the file with the random generators
AVERAGE = "average"  # role of the file with the average of the weights, of rank 0 alone


class Versions:
    """The version of a learner's weights, and the recorded update that led to it."""

    def __init__(self) -> None:
        self.held = 0
        self._last: tuple[int, str, UpdateResult] | None = None
        self._half_done: int | None = None

    def recorded(self, request: UpdateRequest) -> UpdateResult | None:
        """Return the result of the update that led to the current version, if ``request`` is it.

        Returns None where it is to be made now. Raises ``VersionConflict`` for any other version,
        and after an update that failed between steps.
        """
        asked = (request.version, request.batch_digest)
        if self._last is not None and self._last[:2] == asked and self._half_done is None:
            return self._last[2]
        if self._half_done is not None:
            raise VersionConflict(
                f"an update or a load failed between two versions (the weights were version"
                f" {self._half_done}), and they are of none; load a checkpoint first"
            )
        if request.version != self.held:
            raise VersionConflict(
                f"an update was requested for version {request.version} and the learner holds"
                " version "
                f"{self.held}; load the checkpoint of version {request.version} or make the "
                "batch again"
            )
        return None

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Between the first optimizer step and the last, and in a load, weights have no version."""
        self._half_done = self.held
        yield
        # No ``finally``: after an error it stays set, and every update is refused until a load.
        self._half_done = None

    def record(self, request: UpdateRequest, result: UpdateResult) -> None:
        """``request`` has led to ``result.version``."""
        self.held = result.version
        self._last = (request.version, request.batch_digest, result)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, without the last result's token-level part, time and memory, so
        that equal updates make equal files."""
        if self._last is None:
            return {"version": self.held, "last": None}
        version, digest, result = self._last
        lasting = asdict(replace(result, old_logprobs=[], seconds=0.0))
        del lasting["peak_bytes"]
        return {"version": self.held, "last": [version, digest, lasting]}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "Versions":
        """Return what ``to_json`` wrote."""
        versions, last = cls(), saved["last"]
        versions.held = saved["version"]
        versions._last = last and (last[0], last[1], UpdateResult(**last[2]))
        return versions


def save_state(engine: TrainEngine, versions: Versions, directory: Path) -> None:
    """Write this rank's files into ``directory``, which all ranks share. Not atomic."""
    stem = stem_of(directory, engine.rank)
    stem.parent.mkdir(parents=True, exist_ok=True)
    parameters = engine.save(stem)
    rng = {"cpu": torch.get_rng_state()}
    if engine.device == "cuda":
        rng["cuda"] = torch.cuda.get_rng_state()
    save_file(rng, role_file(stem, RNG))
    manifest = {"layout": _layout(engine), **versions.to_json(), "parameters": parameters}
    Path(f"{stem}.json").write_text(json.dumps(manifest), encoding="utf-8")


def load_state(engine: TrainEngine, directory: Path) -> Versions:
    """Restore the state of ``save_state`` in any process, bit for bit; return its versions.

    Any ranks and ZeRO stage read what any others wrote. A rank that those did not have takes the
    random generators of the first. Raises ``UserError`` when the checkpoint is missing, damaged, or
    of another precision or head.
    """
    saved, layout = SavedState(directory), _layout(engine)
    for name in ("dtype", "head"):
        if saved.layout.get(name) != layout[name]:
            raise UserError(
                f"checkpoint {directory} was saved with {name} = {saved.layout.get(name)} and "
                f"this learner has {layout[name]}; set it back, or start from the exported "
                "model with a fresh optimizer"
            )
    engine.load(saved)
    rank = engine.rank if engine.rank < saved.layout["world_size"] else 0
    rng = read_tensors(role_file(stem_of(directory, rank), RNG))
    torch.set_rng_state(rng["cpu"])
    if engine.device == "cuda" and "cuda" in rng:
        torch.cuda.set_rng_state(rng["cuda"])
    return Versions.from_json(saved.manifest)


def average_file(directory: Path) -> Path:
    """Return where the average of the weights is."""
    return role_file(stem_of(directory, 0), AVERAGE)


def _layout(engine: TrainEngine) -> dict[str, Any]:
    """Return who wrote a checkpoint: only ``dtype`` and ``head`` must be those of who reads it."""
    return {
        "world_size": engine.world_size,
        "zero_stage": engine.spec.zero_stage,
        "dtype": engine.spec.dtype,
        "head": engine.spec.head,
    }
