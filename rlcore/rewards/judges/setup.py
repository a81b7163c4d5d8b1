"""What a worker needs to ask the judges of a recipe, and their answers in a store, for the
cache."""

import fcntl
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.rewards.judges.cache import JudgeCache
from rlcore.store.checks import DamagedArtifact
from rlcore.store.reader import ArtifactReader
from schemas.errors import UserError
from schemas.judges import Judge, judges_used
from schemas.recipe import Recipe
from schemas.slices import STAGE_SLICES

_FOLDER = ".judges"  # in a local store; stores skip names that begin with a dot
LONGEST_WAIT_S = 300.0  # between two attempts; a server that asks for more is not waited for


@dataclass(frozen=True, slots=True)
class JudgeSetup:
    """``judges``: those that are asked, by name. ``folder``: of the cache and its locks.
    ``run``: identifies the run whose calls are counted together, reruns included."""

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
            total += (attempts / limits.concurrency + 1) * (limits.timeout_s + LONGEST_WAIT_S)
            total += attempts * 60.0 / (limits.requests_per_minute or float("inf")) + 60.0
        return total


def judge_setup(recipe: Recipe) -> JudgeSetup | None:
    """Return the setup of a recipe's judges, None where its reward asks none."""
    used = judges_used(recipe.judges, recipe.reward.functions)
    return setup_of(recipe, used) if used else None


def setup_of(recipe: Recipe, judges: Mapping[str, Judge]) -> JudgeSetup:
    """Return the setup of ``judges`` alone; of none, it is that of served reward models."""
    return JudgeSetup(judges, cache_folder(recipe.store), run_of(recipe))


def cache_folder(store: str) -> Path:
    """Return where the answers of judges are kept for ``store``: below a local one, in the user's
    cache for a remote one."""
    text = store.removeprefix("file://")
    if "://" not in text:
        return Path(text).expanduser().absolute() / _FOLDER
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "rl-pipeline" / "judges" / hashlib.sha256(text.encode()).hexdigest()[:16]


def run_of(recipe: Recipe) -> str:
    """Return what identifies a run and its reruns: a digest of all that is in a cache key, so that
    a higher ``max_calls`` continues the same count and other training begins a new one."""
    slices = {stage: recipe.slice_for(stage) for stage in sorted(STAGE_SLICES)}
    return hashlib.sha256(json.dumps(slices, sort_keys=True).encode()).hexdigest()[:16]


def check_keys(recipe: Recipe) -> None:
    """Raise UserError for a judge that is asked here and whose API key is not in this process's
    environment; on an existing cluster only those that compare are."""
    for name, judge in recipe.judges.items():
        if judge.is_pairwise or recipe.hardware.ray_address is None:
            key_of(f"judges.{name}", judge.key_env)


def key_of(section: str, variable: str | None) -> str | None:
    """Return the API key of a server from this process's environment, None where it needs none.

    ``section``: the dotted path of what names its ``variable``. Raises UserError when that is not
    set or empty.
    """
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise UserError(
            f"{section}.key_env = {variable!r} is not set where the server is asked; export it"
            " before `make up`, or set key_env to null if the server needs no key"
        )
    return key


_COLUMN = "verdicts"
_TABLES = {  # kind of artifact -> its tables with that column
    "rewards": ("rewards", "baseline_rewards"),
    "validation": ("validation_rewards",),
    "evaluation": ("completions", "win_pairs"),
    "preferences": ("preferences",),
}


def prepare_cache(setup: JudgeSetup, store: str, log: Callable[[str], None]) -> None:
    """Make sure that the cache of ``setup`` can be read; where there is none, or it is damaged, it
    is made again from the artifacts of ``store``, so that no answer in them is paid for twice.

    Answers that no artifact holds yet, those of the phase that was under way, are lost with the
    file. Raises ArtifactError where the store cannot be read.
    """
    setup.folder.mkdir(parents=True, exist_ok=True)
    with (setup.folder / "prepare.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if setup.cache.is_file():
            if _is_whole(setup.cache):
                return
            log(f"{setup.cache} is damaged; it is made again from the verdicts in the store")
        _rebuild(setup, store, log)


def _is_whole(path: Path) -> bool:
    try:
        with closing(JudgeCache(path)) as cache:
            return cache.is_whole()
    except sqlite3.OperationalError:  # locked, or no access: not damage
        raise
    except sqlite3.DatabaseError:
        return False


def _rebuild(setup: JudgeSetup, store: str, log: Callable[[str], None]) -> None:
    for ending in ("-wal", "-shm", ""):
        setup.cache.with_name(f"{setup.cache.name}{ending}").unlink(missing_ok=True)
    partial = setup.cache.with_name(f".{os.getpid()}.sqlite")
    answers: dict[str, str] = {}
    asked: dict[tuple[str, str], set[str]] = {}
    for judge, said in _verdicts(ArtifactReader(store)):
        answers[said["question"]] = said["answer"]
        asked.setdefault((said["run"], judge), set()).add(said["question"])
    partial.unlink(missing_ok=True)
    with closing(JudgeCache(partial)) as cache:
        cache.keep(answers.items())
        for (run, judge), questions in asked.items():
            cache.set_calls(run, judge, len(questions))
        cache.merge_journal()
    os.replace(partial, setup.cache)
    if answers:
        log(f"{len(answers):,} answers of judges were read from the store into {setup.cache}")


def _verdicts(store: ArtifactReader) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield judge and verdict of each row in the store that has any."""
    for kind, tables in _TABLES.items():
        for key in store.keys(kind):
            try:
                ref = store.find(kind, key)
                there = [] if ref is None else [name for name in tables if name in ref.rows]
                frames = [store.table(ref, name) for name in there if ref is not None]
            except DamagedArtifact:  # reported, and made again, where it is used
                continue
            for frame in frames:
                for text in frame[_COLUMN].drop_nulls():
                    for term, said in json.loads(text).items():
                        yield term.partition("/")[2], said
