"""Where results come from, as artifacts: the recipe's text, the code, what was read from outside.

None of them is in a cache key: they are parents that only lineage follows.
"""

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.recipes.load import recipe_digest
from rlcore.recipes.text import write_yaml
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.fingerprint import LIBRARIES, PACKAGES, ROOT, installed
from rlcore.store.inputs import files_read
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef, Manifest
from schemas.recipe import Recipe

RECIPE, CODE, INPUTS = "recipe", "code", "inputs"  # kinds, and the roles as parents
RECIPE_FILE, CODE_FILE = "recipe.yaml", "code.json"
DISTRIBUTION = "rl-pipeline"
GIT_S = 10.0
MACHINE = "machine"  # metadata of a stage's result: where it was made
TRUSTS = "trust_remote_code"  # metadata of a recipe
# Metadata of what learners made with fewer tokens per pass than the recipe says: both figures.
MICRO_BATCH_TOKENS = "micro_batch_tokens"
LAYOUT = "learner_layout"  # metadata of a checkpoint: ``LearnerHardware.layout``
# Metadata of what a stage made after it continued with other ranks than before, each time in order:
# the step of the checkpoint, and the layouts.
RESHARDED = "resharded"
ENGINE = "rollout_engine"  # metadata of what a stage that samples made: which engine did
SHOWN = 12  # digits of a commit
logger = logging.getLogger(__name__)


def record_recipe(store: ArtifactStore, recipe: Recipe, lineage: Lineage) -> ArtifactRef:
    """Keep the resolved recipe as ``recipe/<digest>``, where it is not there yet.

    Its metadata say too whether code that a model brings was run.
    """
    text = write_yaml(recipe.model_dump(mode="json"))
    about = {
        "name": recipe.name,
        "seed": recipe.seed,
        "iterations": recipe.rl.iterations,
        TRUSTS: recipe.model.trust_remote_code,
    }
    return _keep(store, RECIPE, recipe_digest(recipe), RECIPE_FILE, text, lineage, about)


def record_code(store: ArtifactStore, lineage: Lineage) -> ArtifactRef:
    """Keep which commit and libraries the code of ``lineage`` was, as ``code/<digest of both>``."""
    text = json.dumps({"fingerprint": lineage.code_fingerprint, **code_state()}, indent=2) + "\n"
    key = hashlib.sha256(text.encode()).hexdigest()
    return _keep(store, CODE, key, CODE_FILE, text, lineage, {})


def record_inputs(
    store: ArtifactStore, key: str, reads: Mapping[str, str], lineage: Lineage
) -> dict[str, ArtifactRef]:
    """Keep what the stage run ``key`` read from outside the store as ``inputs/<key>``; return it
    as a parent, none where it read nothing.

    What an earlier attempt left is replaced where it names other files or commits.
    """
    schema = {"source": pl.String, "url": pl.String, "digest": pl.String}
    frame = pl.DataFrame(files_read(reads), schema=schema, orient="row")
    if frame.is_empty():
        return {}
    left = store.find_or_discard(INPUTS, key, logger.warning)
    if left is not None and not store.table(left, INPUTS).equals(frame):
        store.discard(INPUTS, key)
    return {INPUTS: store.put(INPUTS, key, tables={INPUTS: frame}, lineage=lineage)}


@cache
def code_state(root: Path = ROOT) -> dict[str, Any]:
    """Return commit (None where unknown), dirty (None without a checkout), and versions of this
    package, Python and the libraries that results depend on.

    An installed package has the commit that its installer recorded (PEP 610), if any.
    """
    (commit, dirty), (number, recorded) = _checkout(root), _installed()
    return {
        "commit": commit or recorded,
        "dirty": dirty,
        "version": number,
        "python": sys.version.split()[0],
        "libraries": [installed(library) for library in LIBRARIES],
    }


def machine_state(gpus: Sequence[str]) -> dict[str, Any]:
    """Return CPUs that this process may use, their name, null where it cannot be told, and
    ``gpus``, the names of those that the driver shows."""
    about = Path("/proc/cpuinfo")
    text = about.read_text(encoding="utf-8", errors="replace") if about.exists() else ""
    names = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": names[0].strip() if names else None,
        "gpus": list(gpus),
    }


def machine_of(made: Manifest) -> str | None:
    """Return the machine that an artifact was made on, as a person writes it; None where that is
    not recorded."""
    machine = made.metadata.get(MACHINE)
    if machine is None:
        return None
    gpus = Counter(machine["gpus"])
    cpus = f"{machine['cpus']} CPUs ({machine['cpu'] or 'name unknown'})"
    return ", ".join([*(f"{count} x {name}" for name, count in gpus.items()), cpus])


def commit_of(store: ArtifactReader, made: Manifest) -> str | None:
    """Return the commit of the code that made an artifact, and whether it was changed; None where
    that is not recorded. Raises ArtifactError where the record is damaged."""
    code = made.parents.get(CODE)
    if code is None:
        return None
    state = json.loads((store.directory(code) / CODE_FILE).read_text(encoding="utf-8"))
    if state["commit"] is None:
        return None
    return state["commit"][:SHOWN] + (" with changes" if state["dirty"] else "")


def layout_text(layout: Mapping[str, int]) -> str:
    """Return a layout in words.

    >>> layout_text({"ranks": 2, "zero_stage": 1})
    '2 ranks (ZeRO 1)'
    """
    ranks, divided = layout["ranks"], layout.get("sequence_parallel")
    how = f"ZeRO {layout['zero_stage']}" + (f", sequences over {divided}" if divided else "")
    return f"{ranks} rank{'s' if ranks > 1 else ''} ({how})"


def _checkout(root: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the checkout ``root`` and whether our packages differ from it.

    A repository around an environment that we are installed in is not ours.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return None, None
    changed = _git(root, "status", "--porcelain", "--", *PACKAGES)
    return _git(root, "rev-parse", "HEAD"), None if changed is None else bool(changed)


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints; None where there is no git, no repository, or no answer in time."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_S, check=False, encoding="utf-8"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _installed() -> tuple[str | None, str | None]:
    """Return version and commit of the installed package, None where unknown."""
    try:
        ours = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return None, None
    recorded = json.loads(ours.read_text("direct_url.json") or "{}")
    return ours.version, recorded.get("vcs_info", {}).get("commit_id")


def _keep(
    store: ArtifactStore,
    kind: str,
    key: str,
    file: str,
    text: str,
    lineage: Lineage,
    metadata: Mapping[str, Any],
) -> ArtifactRef:
    """Return the artifact as is; write ``text`` as its ``file`` if that lacks or is damaged."""
    if (found := store.find_or_discard(kind, key, logger.warning)) is not None:
        return found
    with store.scratch() as scratch:
        (scratch / file).write_text(text, encoding="utf-8")
        made = replace(lineage, parents={}, metadata=metadata)
        return store.put(kind, key, directory=scratch, lineage=made)
