"""The cache of judges' answers, made again from the verdicts in a store's artifacts."""

import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from rlcore.judges.cache import JudgeCache
from rlcore.judges.setup import JudgeSetup
from rlcore.store.checks import DamagedArtifact
from rlcore.store.reader import ArtifactReader

_COLUMN = "verdicts"
_TABLES = {  # kind of artifact -> its tables with that column
    "rewards": ("rewards", "baseline_rewards"),
    "validation": ("validation_rewards",),
    "evaluation": ("completions",),
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
        cache.settle()
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
