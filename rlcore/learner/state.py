"""The training state as files: shards of the optimizer, RNG, version, last update."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from rlcore.learner.engine import TrainEngine
from rlcore.learner.shards import read_manifest, read_tensors
from rlcore.learner.versions import Versions
from schemas.errors import UserError


def save_state(engine: TrainEngine, versions: Versions, directory: Path) -> None:
    """Write this rank's files into ``directory``, which all ranks share. Not atomic."""
    stem = _stem(engine, directory)
    stem.parent.mkdir(parents=True, exist_ok=True)
    parameters = engine.save(stem)
    rng = {"cpu": torch.get_rng_state()}
    if engine.device == "cuda":
        rng["cuda"] = torch.cuda.get_rng_state()
    save_file(rng, f"{stem}.rng.safetensors")
    manifest = {"layout": _layout(engine), **versions.to_json(), "parameters": parameters}
    Path(f"{stem}.json").write_text(json.dumps(manifest), encoding="utf-8")


def load_state(engine: TrainEngine, directory: Path) -> Versions:
    """Restore the state of ``save_state`` bit for bit, in any process; return its versions.

    Raises ``UserError`` when the checkpoint is missing or was written by another layout.
    """
    stem = _stem(engine, directory)
    path = Path(f"{stem}.json")
    if stem.with_suffix(".pt").is_file():
        raise UserError(
            f"checkpoint {directory} is of an earlier version, whose pickled shards are no longer"
            " read; remove it, or finish its run with the version that wrote it"
        )
    if not path.is_file():
        raise UserError(
            f"{path} does not exist; give a directory that a learner of {engine.world_size} "
            "rank(s) saved"
        )
    saved, layout = read_manifest(path), _layout(engine)
    if saved["layout"] != layout:
        name = next(n for n, value in layout.items() if saved["layout"].get(n) != value)
        raise UserError(
            f"checkpoint {directory} was saved with {name} = {saved['layout'].get(name)} and "
            f"this learner has {layout[name]}; set it back, or start from the exported "
            "model with a fresh optimizer"
        )
    engine.load(stem, saved["parameters"])
    rng = read_tensors(Path(f"{stem}.rng.safetensors"))
    torch.set_rng_state(rng["cpu"])
    if "cuda" in rng:
        torch.cuda.set_rng_state(rng["cuda"])
    return Versions.from_json(saved)


def _stem(engine: TrainEngine, directory: Path) -> Path:
    return directory / f"rank{engine.rank:05d}"


def _layout(engine: TrainEngine) -> dict[str, Any]:
    """Return the settings that the layout of the shards depends on."""
    return {
        "world_size": engine.world_size,
        "zero_stage": engine.spec.zero_stage,
        "dtype": engine.spec.dtype,
        "head": engine.spec.head,
    }
