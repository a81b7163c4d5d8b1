"""What a worker needs to ask the judges of a recipe."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import UserError
from schemas.judges import Judge, judges_used
from schemas.recipe import STAGE_SLICES, Recipe

_FOLDER = ".judges"  # in a local store; stores skip names that begin with a dot
_WAIT_S = 300.0  # longest wait between two attempts


@dataclass(frozen=True, slots=True)
class JudgeSetup:
    """``judges``: those that the reward asks, by name. ``folder``: of the cache and its locks.
    ``run``: stands for the run whose calls are counted together, reruns included."""

    judges: Mapping[str, Judge]
    folder: Path
    run: str

    @property
    def cache(self) -> Path:
        """The path of the cache."""
        return self.folder / "answers.sqlite"

    def longest_s(self, rows: int) -> float:
        """Return a bound on the seconds that the judges take for ``rows``, every request of which
        fails and is repeated."""
        total = 0.0
        for judge in self.judges.values():
            limits = judge.limits
            attempts = rows * (limits.retries + 1)
            total += (attempts / limits.concurrency + 1) * (limits.timeout_s + _WAIT_S)
            total += attempts * 60.0 / (limits.requests_per_minute or float("inf")) + 60.0
        return total


def judge_setup(recipe: Recipe) -> JudgeSetup | None:
    """Return the setup of a recipe's judges, None where its reward asks none."""
    used = judges_used(recipe.judges, recipe.reward.functions)
    if not used:
        return None
    return JudgeSetup(used, cache_folder(recipe.store), run_of(recipe))


def cache_folder(store: str) -> Path:
    """Return where the answers of judges are kept for ``store``: below a local one, in the user's
    cache for a remote one."""
    text = store.removeprefix("file://")
    if "://" not in text:
        return Path(text).expanduser().absolute() / _FOLDER
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "rl-pipeline" / "judges" / hashlib.sha256(text.encode()).hexdigest()[:16]


def run_of(recipe: Recipe) -> str:
    """Return what stands for a run and its reruns: a digest of all that is in a cache key, so that
    a higher ``max_calls`` continues the same count and other training begins a new one."""
    slices = {stage: recipe.slice_for(stage) for stage in sorted(STAGE_SLICES)}
    return hashlib.sha256(json.dumps(slices, sort_keys=True).encode()).hexdigest()[:16]


def check_keys(recipe: Recipe) -> None:
    """Raise UserError for a judge whose API key is not in this process's environment."""
    for name, judge in recipe.judges.items():
        key_of(name, judge)


def key_of(name: str, judge: Judge) -> str | None:
    """Return the API key of ``judge`` from this process's environment, None where it needs none.

    Raises UserError when the variable is not set or empty.
    """
    if judge.key_env is None:
        return None
    if not (key := os.environ.get(judge.key_env)):
        raise UserError(
            f"judges.{name}.key_env = {judge.key_env!r} is not set where the judge is asked; export"
            " it before `make up`, or set key_env to null if the server needs no key"
        )
    return key
