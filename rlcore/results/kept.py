"""Parquet files that readers of a store keep for the next one, in the folder of the index.

The name of a file holds its own digest: one that is damaged counts as absent, and is written
again. Files appear by renaming, so that any number of processes may read and write them at once;
where the folder cannot be written, nothing is kept.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import duckdb

from rlcore.results.conditions import constant

_TRIES = 3  # reads of a folder whose files others replace


class KeptFiles:
    """The files of ``folder``, read and written through ``connection``; ``form``: the number in
    their names, files with another one count as absent."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path, form: int) -> None:
        self._connection, self._folder, self._form = connection, folder, form

    def read(self, name: str, use: Callable[[str], None]) -> bool:
        """Call ``use`` with the path of the newest whole file of ``name``; False where there is
        none, or others replace it all the time. ``use`` is called again if it was replaced."""
        for _ in range(_TRIES):
            path = self._newest_whole(name)
            if path is None:
                return False
            try:
                use(str(path))
            except duckdb.Error:  # replaced by another process since
                continue
            return True
        return False

    def keep(
        self,
        name: str,
        sql: str,
        about: str = "",
        still_true: Callable[[], bool] = lambda: True,
    ) -> None:
        """Write the rows of ``sql`` as the file of ``name``, then remove those before it.

        ``about``: text that ``about`` returns of the file. ``still_true`` is asked after the rows
        were read; without it, nothing is kept.
        """
        partial = self._folder / f".{name}-{uuid4().hex}"
        said = f", KV_METADATA {{about: {constant(about)}}}" if about else ""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._connection.execute(
                f"COPY ({sql}) TO {constant(str(partial))} (FORMAT parquet, COMPRESSION zstd{said})"
            )
            if not still_true():
                partial.unlink()
                return
            kept = self._folder / f"{name}-{self._form}-{_digest(partial)}.parquet"
            earlier = [path for path in self._folder.iterdir() if _is_of(path.name, name)]
            os.replace(partial, kept)
            for path in earlier:
                if path not in (kept, partial):
                    path.unlink(missing_ok=True)
        except (OSError, duckdb.IOException):  # a read-only store, or a full disk
            return

    def about(self, path: str) -> str:
        """Return the text ``about`` that the file at ``path`` was written with."""
        (found,) = self._connection.execute(
            "SELECT decode(value) FROM parquet_kv_metadata(?) WHERE decode(key) = 'about'", [path]
        ).fetchall()
        return found[0]

    def _newest_whole(self, name: str) -> Path | None:
        """Return the newest file whose name holds its digest; None where there is none."""
        found: list[tuple[int, Path]] = []
        try:
            for path in self._folder.iterdir():
                if path.suffix == ".parquet" and path.name.startswith(f"{name}-{self._form}-"):
                    found.append((path.stat().st_mtime_ns, path))
            for _, path in sorted(found, reverse=True):
                if path.stem.rpartition("-")[2] == _digest(path):
                    return path
        except OSError:  # no folder, or a file that was replaced since
            pass
        return None


def _is_of(file: str, name: str) -> bool:
    """Return whether a file, or what a killed writer left of one, holds ``name``."""
    return file.startswith((f"{name}-", f".{name}-"))


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
