"""The champions of a recipe: an append-only history in the store, and the decisions behind it.

``champions/<name>/<number>`` is an entry, from 1; the highest number is the champion. A gate writes
``decisions/<name>/<key>``, whose key is made of what was compared: asked twice, it is one decision
and one look at the test prompts. Both are written under the lock of ``name``, a lease, and an entry
only if the champion is still the one that it was to follow. Killed anywhere, an entry is whole or
absent.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import polars as pl
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from rlcore.evaluation.promotion_rule import Verdict
from rlcore.results.roots import CHAMPIONS, EXPORT
from rlcore.store.artifacts import (
    ArtifactError,
    ArtifactStore,
    DamagedArtifact,
    LeaseError,
    Lineage,
)
from rlcore.store.reader import ArtifactReader
from rlcore.store.tables import polars_schema
from rlcore.store.tombstones import PrunedArtifact
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError, did_you_mean

DECISIONS = "decisions"
FIRST, PROMOTED, BY_HAND, ROLLED_BACK = "first", "promoted", "by hand", "rolled back"
LOCK_WAIT_S = 60.0  # how long another's lock, held for a second or two, is waited for
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")  # as ``Recipe.name``


class ChampionMoved(UserError):
    """Another entry was made since the champion was read; nothing was written."""


@dataclass(frozen=True, slots=True)
class Champion:
    """A row of the table ``champions``; see there."""

    name: str
    number: int
    cause: str
    export_key: str
    export_sha256: str
    decision_key: str | None
    restored: int | None
    by: str
    made: str

    @property
    def export(self) -> ArtifactRef:
        """The model, as it must be."""
        return ArtifactRef(kind=EXPORT, key=self.export_key, uri="", sha256=self.export_sha256)


@contextmanager
def decision_lock(store: ArtifactStore, name: str) -> Iterator[None]:
    """Be the only one who writes decisions and champions of ``name``; another is waited for.

    Raises LeaseError, naming the other, after ``LOCK_WAIT_S``.
    """
    attempts = Retrying(
        retry=retry_if_exception_type(LeaseError),
        stop=stop_after_delay(LOCK_WAIT_S),
        wait=wait_fixed(0.2),
        reraise=True,
    )
    with ExitStack() as held:
        attempts(lambda: held.enter_context(store.hold(name)))
        yield


def champions(store: ArtifactReader, name: str) -> list[Champion]:
    """Return the entries of ``name`` in their order. Raises ArtifactError where one is damaged,
    UserError for a name that no recipe can have."""
    return [_entry(store, name, number) for number in _numbers(store, name)]


def champion(store: ArtifactReader, name: str) -> Champion | None:
    """Return the champion of ``name``; None where there is none. Raises as ``champions``."""
    numbers = _numbers(store, name)
    return _entry(store, name, numbers[-1]) if numbers else None


def champion_names(store: ArtifactReader) -> list[str]:
    """Return the names that have a champion, sorted."""
    return sorted({key.rpartition("/")[0] for key in store.keys(CHAMPIONS)})


def verified_export(store: ArtifactReader, entry: Champion) -> ArtifactRef:
    """Return the export of ``entry``, all its files verified.

    Raises UserError, with those that are whole, where it is gone, damaged or not what it was.
    """
    try:
        store.verify(entry.export)
    except ArtifactError as error:
        whole = [str(e.number) for e in champions(store, entry.name) if _is_whole(store, e)]
        there = f"roll back to one of {', '.join(whole)}" if whole else "none is whole"
        fault = "it is not there"
        if isinstance(error, PrunedArtifact):
            fault = f"it was {error.pruned.sentence()}"
        elif isinstance(error, DamagedArtifact):
            fault = error.fault
        raise UserError(
            f"champion {entry.number} of '{entry.name}': its export {EXPORT}/{entry.export_key}"
            f" cannot be used, {fault}; {there} (rl-pipeline champions {entry.name}), or run the"
            " recipe that made it again"
        ) from error
    found = store.find(EXPORT, entry.export_key)
    assert found is not None, "it was verified"
    return found


def entries_of(store: ArtifactReader, name: str) -> list[Champion]:
    """Return ``champions``. Raises UserError, with the names there are, where there is none."""
    entries = champions(store, name)
    if not entries:
        known = champion_names(store)
        raise UserError(
            f"'{name}' has no champion in {store.root}{did_you_mean(name, known)}; there are"
            f" {', '.join(known) or 'none; a run of the flow retrain makes the first'}"
        )
    return entries


def entry_of(store: ArtifactReader, name: str, text: str) -> Champion:
    """Return the entry of ``name`` that a person means by its number or by digits of its export's
    digest or key. Raises UserError, with those there are, for none or several."""
    entries = entries_of(store, name)
    found = [e for e in entries if str(e.number) == text]
    if not found and len(text) >= 6:
        found = [e for e in entries if e.export_sha256.startswith(text) or e.export_key == text]
    if len({e.export_sha256 for e in found}) != 1:
        shown = ", ".join(f"{e.number} ({e.export_sha256[:12]})" for e in entries)
        raise UserError(f"'{text}' names no entry of the champions of '{name}'; there are {shown}")
    return found[-1]


def add_champion(
    store: ArtifactStore,
    name: str,
    *,
    after: int,
    export: ArtifactRef,
    cause: str,
    decision: ArtifactRef | None = None,
    evaluations: Mapping[str, ArtifactRef] | None = None,
    restored: int | None = None,
    recipe_digest: str = "",
    by: str = "",
) -> Champion:
    """Make ``export`` the champion of ``name`` that follows entry ``after`` (0: the first).

    The same promotion asked again is the entry that it made. Raises ChampionMoved where there is a
    later entry, UserError where the export is not whole, LeaseError where another keeps the lock.
    """
    decision_key = None if decision is None else decision.key.rpartition("/")[2]
    with decision_lock(store, name):
        last = champion(store, name)
        now = 0 if last is None else last.number
        if last is not None and decision_key is not None and last.decision_key == decision_key:
            return last
        if now != after:
            raise ChampionMoved(
                f"'{name}' has champion {now} since, and this was to follow {after}; compare with"
                " that one"
            )
        entry = Champion(
            name=name,
            number=after + 1,
            cause=cause,
            export_key=export.key,
            export_sha256=export.sha256,
            decision_key=decision_key,
            restored=restored,
            by=by,
            made=datetime.now(UTC).isoformat(),
        )
        verified_export(store, entry)
        parents = {EXPORT: export, **(evaluations or {})}
        if decision is not None:
            parents["decision"] = decision
        if last is not None:
            previous = store.find(CHAMPIONS, f"{name}/{after}")
            assert previous is not None, "it was read"
            parents["previous"] = previous
        store.put(
            CHAMPIONS,
            f"{name}/{entry.number}",
            tables={CHAMPIONS: pl.DataFrame([asdict(entry)], schema=polars_schema(CHAMPIONS))},
            lineage=Lineage(recipe_digest, "", parents, producer=by),
        )
        return entry


def looks(store: ArtifactReader, name: str, prompts_digest: str) -> int:
    """Return how often the prompts have decided for ``name``: a first champion is no look."""
    rows = decisions(store, name)
    ours = rows.filter(
        (pl.col("prompts_digest") == prompts_digest) & (pl.col("verdict") != Verdict.FIRST)
    )
    return ours["key"].n_unique()


def decisions(store: ArtifactReader, name: str) -> pl.DataFrame:
    """Return the table ``decisions`` of ``name`` by time, with the ``key`` of each row's decision.

    Raises ArtifactError where one is damaged.
    """
    frames = [pl.DataFrame(schema={**polars_schema(DECISIONS), "key": pl.String})]
    for key in store.keys(DECISIONS, f"{name}/"):
        if (ref := store.find(DECISIONS, key)) is not None:
            rows = store.table(ref, DECISIONS)
            frames.append(rows.with_columns(key=pl.lit(key.rpartition("/")[2])))
    return pl.concat(frames).sort("made", maintain_order=True)


def prompts_digest(uids: Iterable[str]) -> str:
    """Return the sha256 over prompts, in any order; a uid is made of a prompt's content, its ground
    truth included."""
    return hashlib.sha256("\n".join(sorted(set(uids))).encode()).hexdigest()


def _numbers(store: ArtifactReader, name: str) -> list[int]:
    """Return the numbers of the entries of ``name``, sorted."""
    if not _NAME.fullmatch(name):
        near = did_you_mean(name, champion_names(store))
        raise UserError(f"'{name}' is no name of a recipe: small letters, digits and '-'{near}")
    return sorted(int(key.rpartition("/")[2]) for key in store.keys(CHAMPIONS, f"{name}/"))


def _entry(store: ArtifactReader, name: str, number: int) -> Champion:
    ref = store.find(CHAMPIONS, f"{name}/{number}")
    if ref is None:
        raise ArtifactError(f"{store.root}/{CHAMPIONS}/{name}/{number} is gone; list them again")
    return Champion(**store.table(ref, CHAMPIONS).row(0, named=True))


def _is_whole(store: ArtifactReader, entry: Champion) -> bool:
    try:
        store.verify(entry.export)
    except ArtifactError:
        return False
    return True
