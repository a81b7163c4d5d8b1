"""The artifacts of a store as DuckDB tables, through an index of what was read before.

``_store.manifests``  a row per complete artifact: its manifest, and the manifest file's stamp
``_store.checked``    a row per file whose digest was found to be ``sha256`` when it had ``stamp``

Both are kept as Parquet in ``ArtifactReader.index_folder`` (``<store>/.index``). An entry counts
only while the stamp (``rlcore.store.file_stamps``) of the file that it is about is the same, so a
changed, damaged or removed artifact is found out as without an index; outside of this promise is a
change that keeps size and inode and sets back the times of modification and change.

The name of such a file holds its own digest: one that is damaged counts as absent, and is written
again. Files appear by renaming, so that any number of processes may read and write them at once;
where the folder cannot be written, everything is read each time.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb

from rlcore.results.conditions import constant
from rlcore.store.file_stamps import stamp
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import Manifest

_TRIES = 3  # reads of a folder whose files others replace
FORMAT = 1  # raise it when a column changes: files with another number count as absent


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


MANIFESTS, CHECKED = "manifests", "checked"
_COLUMNS: dict[str, dict[str, Any]] = {
    MANIFESTS: {
        **dict.fromkeys(("place", "stamp", "kind", "key", "sha256", "recipe_digest"), "VARCHAR"),
        **dict.fromkeys(("code_fingerprint", "producer", "created_at"), "VARCHAR"),
        "bytes": "BIGINT",
        **dict.fromkeys(("rows", "metadata"), "VARCHAR"),
        "parents": [dict.fromkeys(("role", "kind", "key", "sha256"), "VARCHAR")],
        "tables": [dict.fromkeys(("name", "version", "sha256"), "VARCHAR")],
    },
    CHECKED: dict.fromkeys(("place", "name", "sha256", "stamp"), "VARCHAR"),
}


class Index:
    """What a connection knows of a store: ``load`` first, ``checked_file`` per file that is read,
    ``save`` last."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, store: ArtifactReader) -> None:
        self._connection, self._store = connection, store
        self._folder = store.index_folder
        self._parsed: dict[str, Manifest] = {}  # by place: those that were read now
        self._checked: dict[tuple[str, str], tuple[str, str]] = {}
        self._new: list[dict[str, str]] = []  # rows of CHECKED
        self._changed = False  # whether MANIFESTS differs from what is kept

    def load(self, on_damage: Callable[[str], None] | None) -> None:
        """Create the tables of the schema ``_store``; read only manifests that are new or changed.

        Damage is told as by ``ArtifactReader.manifests``.
        """
        self._connection.execute("CREATE SCHEMA _store")
        for name in (MANIFESTS, CHECKED):
            self._restore(name)
        known = dict(self._rows(f"SELECT place, stamp FROM _store.{MANIFESTS}"))
        stamps = self._store.stamps()
        stale = [place for place, then in known.items() if stamps.get(place) != then]
        fresh = [place for place, now in stamps.items() if not now or known.get(place) != now]
        for manifest in self._store.read_manifests(fresh, on_damage):
            self._parsed[f"{manifest.kind}/{manifest.key}"] = manifest
        self._connection.execute(
            f"DELETE FROM _store.{MANIFESTS} WHERE place IN (SELECT unnest(?::VARCHAR[]))", [stale]
        )
        rows = [_row(place, stamps[place], each) for place, each in self._parsed.items()]
        self._insert(MANIFESTS, rows)
        self._changed = bool(stale) or any(row["stamp"] for row in rows)
        self._checked = {
            (place, name): (sha256, then)
            for place, name, sha256, then in self._rows(f"FROM _store.{CHECKED}")
        }

    def checked_file(self, place: str, content: str, name: str, sha256: str) -> str:
        """Return the local path of a file, its digest verified now or when it had the same stamp.

        ``content``: the digest of its artifact. Raises DamagedArtifact where it is damaged.
        """
        path = self._store.local_path(place, name, content)
        now = stamp(path)
        if now and self._checked.get((place, name)) == (sha256, now):
            return path
        manifest = self._parsed.get(place) or self._store.read_manifests([place])[0]
        path = str(self._store.file(manifest, name))
        if now and manifest.files[name].sha256 == sha256:
            self._new.append({"place": place, "name": name, "sha256": sha256, "stamp": now})
            self._checked[place, name] = sha256, now
        return path

    def save(self) -> None:
        """Keep what was learnt for the next process, where the index can be written."""
        if self._new:
            self._connection.execute(
                f"DELETE FROM _store.{CHECKED} WHERE place || '/' || name IN"
                " (SELECT unnest(?::VARCHAR[]))",
                [[f"{row['place']}/{row['name']}" for row in self._new]],
            )
            self._insert(CHECKED, self._new)
            self._keep(CHECKED, f"FROM _store.{CHECKED} SEMI JOIN _store.{MANIFESTS} USING (place)")
        if self._changed:
            self._keep(MANIFESTS, f"FROM _store.{MANIFESTS} WHERE stamp <> ''")

    def _restore(self, name: str) -> None:
        """Create the table ``name`` from the newest whole file that is kept; empty where there is
        none, or others replace it all the time."""
        columns = _COLUMNS[name]
        for _ in range(_TRIES):
            if (path := self._newest_whole(name)) is None:
                break
            with suppress(duckdb.Error):  # replaced by another process since
                self._connection.execute(
                    f"CREATE TABLE _store.{name} AS SELECT {', '.join(columns)}"
                    " FROM read_parquet(?)",
                    [str(path)],
                )
                return
        types = ", ".join(f"{column} {_type(kind)}" for column, kind in columns.items())
        self._connection.execute(f"CREATE TABLE _store.{name} ({types})")

    def _keep(self, name: str, sql: str) -> None:
        """Write the rows of ``sql`` as the file of ``name``, then remove those before it."""
        partial = self._folder / f".{name}-{uuid4().hex}"
        with suppress(OSError, duckdb.IOException):  # a read-only store, or a full disk
            self._folder.mkdir(parents=True, exist_ok=True)
            self._connection.execute(
                f"COPY ({sql}) TO {constant(str(partial))} (FORMAT parquet, COMPRESSION zstd)"
            )
            kept = self._folder / f"{name}-{FORMAT}-{_digest(partial)}.parquet"
            # .<name>-*: of killed writers; rows_*: of versions to 0.2.0, which kept tables' columns
            ours = (f"{name}-", f".{name}-", "rows_")
            earlier = [path for path in self._folder.iterdir() if path.name.startswith(ours)]
            os.replace(partial, kept)
            for path in earlier:
                if path not in (kept, partial):
                    path.unlink(missing_ok=True)

    def _newest_whole(self, name: str) -> Path | None:
        """Return the newest file whose name holds its digest; None where there is none."""
        with suppress(OSError):  # no folder, or a file that was replaced since
            files = self._folder.glob(f"{name}-{FORMAT}-*.parquet")
            for _, path in sorted(((p.stat().st_mtime_ns, p) for p in files), reverse=True):
                if path.stem.rpartition("-")[2] == _digest(path):
                    return path
        return None

    def _insert(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Append rows; as one JSON text, since an INSERT per row takes a thousand times as long."""
        if rows:
            self._connection.execute(
                f"INSERT INTO _store.{name} SELECT row.* FROM"
                " (SELECT unnest(from_json(?::JSON, ?)) AS row)",
                [json.dumps(rows), json.dumps([_COLUMNS[name]])],
            )

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()


def _row(place: str, now: str, manifest: Manifest) -> dict[str, Any]:
    """Return the row of ``_store.manifests``; files other than tables only count in ``bytes``."""
    return {
        "place": place,
        "stamp": now,
        **{
            name: getattr(manifest, name)
            for name in ("kind", "key", "sha256", "recipe_digest", "code_fingerprint", "producer")
        },
        "created_at": manifest.created_at,
        "bytes": sum(entry.bytes for entry in manifest.files.values()),
        "rows": json.dumps(manifest.rows),
        "metadata": json.dumps(manifest.metadata),
        "parents": [
            {"role": role, "kind": parent.kind, "key": parent.key, "sha256": parent.sha256}
            for role, parent in manifest.parents.items()
        ],
        "tables": list(_tables(manifest)),
    }


def _tables(manifest: Manifest) -> Iterable[Mapping[str, str | None]]:
    for table in manifest.rows:
        entry = manifest.files.get(f"{table}.parquet")
        yield {
            "name": table,
            "version": manifest.schema_versions.get(table),
            "sha256": entry.sha256 if entry else "",
        }


def _type(kind: Any) -> str:
    """Return the SQL type of a structure of ``from_json``."""
    match kind:
        case [inner]:
            return f"{_type(inner)}[]"
        case dict():
            fields = ", ".join(f"{name} {_type(inner)}" for name, inner in kind.items())
            return f"STRUCT({fields})"
    return str(kind)
