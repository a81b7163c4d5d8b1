"""Answers of judges in a local SQLite file, and how many calls a run has made.

All workers of a run, and all runs of a store, share the file. A commit follows each answer, so a
process that is killed loses the answers under way only. The file can be lost: it is made again
from the verdicts in the store's artifacts (``rebuild``). It holds no key.
"""

import fcntl
import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

_BUSY_S = 60.0
_MINUTE_S = 60.0
_TABLES = """
    CREATE TABLE IF NOT EXISTS answers (question TEXT PRIMARY KEY, answer TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS calls (
        run TEXT, judge TEXT, made INTEGER NOT NULL, PRIMARY KEY (run, judge)
    );
    CREATE TABLE IF NOT EXISTS sent (judge TEXT, at REAL);
    CREATE INDEX IF NOT EXISTS sent_by_judge ON sent (judge, at);
"""


class JudgeCache:
    """The cache in the file ``path``; an object per process, used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file, making it and its folder where there is none. Raises sqlite3.DatabaseError
        when it is damaged."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(
            path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        # SQLite does not wait for its timeout while another process changes the journal's mode.
        with open(path.with_name(f"{path.name}.opening"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.executescript(_TABLES)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def merge_journal(self) -> None:
        """Leave all in one file, so that it can be renamed; ``close`` passes over a full disk."""
        self._file.execute("PRAGMA journal_mode = DELETE")

    def is_whole(self) -> bool:
        """Return whether SQLite finds no damage in the file."""
        return self._file.execute("PRAGMA quick_check").fetchone() == ("ok",)

    def find(self, questions: Sequence[str]) -> dict[str, str]:
        """Return the answers there are, by the questions' digests."""
        rows = self._file.execute(
            "SELECT question, answer FROM answers"
            " WHERE question IN (SELECT value FROM json_each(?))",
            (json.dumps(questions),),
        )
        return dict(rows.fetchall())

    def keep(self, answers: Iterable[tuple[str, str]]) -> None:
        """Add answers by the digests of their questions; the first answer to a question stays."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", answers)

    def reserve(self, run: str, judge: str, *, most: int) -> bool:
        """Count one more call of ``run``; False, and not counted, once it has made ``most``."""
        made = self._file.execute(
            "INSERT INTO calls VALUES (?1, ?2, 1) ON CONFLICT DO UPDATE SET made = made + 1"
            " WHERE made < ?3",
            (run, judge, most),
        )
        return made.rowcount > 0

    def release(self, run: str, judge: str) -> None:
        """Take back a ``reserve`` of a call that nobody charges for."""
        self._file.execute(
            "UPDATE calls SET made = made - 1 WHERE run = ? AND judge = ?", (run, judge)
        )

    def set_calls(self, run: str, judge: str, made: int) -> None:
        """Say how many calls ``run`` has made, where nothing is known of it."""
        self._file.execute("INSERT OR IGNORE INTO calls VALUES (?, ?, ?)", (run, judge, made))

    def send(self, judge: str, *, per_minute: int) -> float:
        """Record a request that is sent now and return 0; or, where ``per_minute`` were sent within
        the last minute, return the seconds until one may be."""
        now = time.time()
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            # A clock that was set back leaves times in the future, which say nothing.
            self._file.execute(
                "DELETE FROM sent WHERE judge = ? AND (at <= ? OR at > ?)",
                (judge, now - _MINUTE_S, now),
            )
            times = self._file.execute(
                "SELECT at FROM sent WHERE judge = ? ORDER BY at DESC LIMIT ?", (judge, per_minute)
            ).fetchall()
            if len(times) >= per_minute:
                return times[-1][0] + _MINUTE_S - now
            self._file.execute("INSERT INTO sent VALUES (?, ?)", (judge, now))
            return 0.0
