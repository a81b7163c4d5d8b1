"""Stores of many runs that a test makes by hand: real artifacts, nothing trained."""

import os
import shutil
from copy import copy
from dataclasses import replace
from pathlib import Path

import polars as pl

from rlcore.results.metrics import metrics_frame
from rlcore.results.provenance import INPUTS
from rlcore.results.run import record_stage
from rlcore.retraining.champions import BY_HAND, add_champion
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from tests.rlcore.results.records import stage_record

URL = "file:///data/train.jsonl"


def put(
    store: ArtifactStore, kind: str, key: str, folder: Path | None = None, /, **parents: ArtifactRef
) -> ArtifactRef:
    """Put one artifact: a table, or the files of ``folder``."""
    made = Lineage("r", "c", parents)
    if folder is not None:
        return store.put(kind, key, directory=folder, lineage=made)
    table = {"metrics": metrics_frame(f"{kind} {key}", 0, {"x": 1.0})}
    return store.put(kind, key, tables=table, lineage=made)


class Filled:
    """A store with ``add_run`` for as many as a test needs; all share the dataset and its input."""

    def __init__(self, root: Path | str, files: Path, iterations: int = 2) -> None:
        self.store, self._files, self._iterations = ArtifactStore(root), files, iterations
        files.mkdir(parents=True)
        read = pl.DataFrame({"source": ["data"], "url": [URL], "digest": ["0" * 64]})
        made = Lineage("r", "c")
        inputs = self.store.put(INPUTS, "d", tables={INPUTS: read}, lineage=made)
        (files / "recipe.yaml").write_text("rl: {checkpoint: {}}")
        (files / "code.json").write_text("{}")
        origin = {
            "recipe": self.store.put("recipe", "r", directory=files, lineage=made),
            "code": self.store.put("code", "c", directory=files, lineage=made),
        }
        self.dataset = put(self.store, "dataset", "d", inputs=inputs, **origin)

    def copy(self, root: Path) -> "Filled":
        """Return a copy of the store at ``root``; files are links, as nobody writes to them."""
        shutil.copytree(self.store.root, root, copy_function=os.link)
        copied = copy(self)
        copied.store = ArtifactStore(root)
        return copied

    def add_run(self, number: int, recipe: str = "sums", *, ended: bool = True) -> ArtifactRef:
        """Add run ``number`` with its RL, and, if it ``ended``, its export; return the last."""
        store, key, dataset = self.store, f"{recipe}{number:02d}", self.dataset
        folder = self._files / key
        (folder / "sub").mkdir(parents=True)
        (folder / "weights").write_text(f"weights of {key}")
        (folder / "sub" / "config").write_text(key)
        last = dataset
        for step in range(1, self._iterations + 1):
            name = f"{key}/{step:06d}"
            rollouts = put(store, "rollouts", name, dataset=dataset)
            rewards = put(store, "rewards", name, rollouts=rollouts)
            last = put(store, "iterations", name, rollouts=rollouts, rewards=rewards, previous=last)
        put(store, "checkpoint", f"{key}/{self._iterations:06d}", folder, dataset=dataset)
        row = stage_record(f"{recipe}-{number:08d}", "rl", kind="policy", key=key)
        row = replace(row, began=f"2026-01-01T00:{number:02d}:00+00:00")
        if ended:
            last = put(store, "policy", key, folder, best=last, dataset=dataset)
            row = replace(row, sha256=last.sha256, cached=False, seconds=1.0)
        record_stage(store, row, Lineage("r", "c"))
        if ended:
            last = put(store, "export", key, folder, policy=last)
            ended_row = replace(row, stage="export", result_kind="export", sha256=last.sha256)
            record_stage(store, ended_row, Lineage("r", "c"))
        shutil.rmtree(folder)
        return last

    def add_champion(self, name: str, number: int, export: ArtifactRef) -> None:
        """Make ``export`` a champion by hand."""
        add_champion(self.store, name, after=number - 1, export=export, cause=BY_HAND)


def whole(store: ArtifactStore) -> set[str]:
    """Return the places of all artifacts; fails for one that is half there."""
    found = set()
    for kind in store.kinds():
        for key in store.keys(kind):
            ref = store.find(kind, key)
            if ref is None:
                raise ArtifactError(f"{kind}/{key} is listed and not there")
            store.verify(ref)
            found.add(f"{kind}/{key}")
    return found
