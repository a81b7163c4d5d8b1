"""What commands print: a table that fits the terminal, or CSV or JSON with every value whole."""

import argparse
import csv
import json
import math
import os
import re
import select
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import datetime
from types import NoneType
from typing import Any

from rich.cells import cell_len, set_cell_size

FORMATS = ("table", "csv", "json")
GAP = "  "
LEAST = 12  # cells that a column of a table keeps; where that is too wide, records are printed
LEAST_NUMBER = 5  # and one of numbers, beside columns that are cut
WIDTH = 100  # cells, where the output is no terminal and COLUMNS is not set

Row = Mapping[str, Any]


def local_time(seconds: float) -> str:
    """Return seconds since the epoch as ISO 8601 in this machine's zone."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def add_format(parser: argparse.ArgumentParser, others: str = "every value whole") -> None:
    """Add ``--format`` to a command that prints figures; ``others``: what CSV and JSON hold."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="table",
        help=f"table: cut to the terminal; csv, json: {others} (default: %(default)s)",
    )


def print_rows(rows: Sequence[Row], columns: Sequence[str], form: str, *, null: str = "-") -> None:
    """Print ``rows`` to stdout in one of ``FORMATS``; ``columns``: their keys, in order; ``null``:
    what a table shows for None."""
    if form == "json":
        print_json([dict(row) for row in rows])
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_field(row[name]) for name in columns] for row in rows)
    else:
        print("\n".join(table_lines(rows, columns, terminal_width(), null=null)))


def print_wrapped(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a table as wide as the terminal, long texts over several lines."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=SIMPLE_HEAD, title=title, title_justify="left", title_style="")
    table.columns[-1].overflow = "fold"  # a key with its end cut off is of no use
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)


def print_json(value: Any) -> None:
    """Print one value to stdout; what is not finite is null."""
    print(json.dumps(_plain(value), indent=1, ensure_ascii=False))


@contextmanager
def progress_on_stderr() -> Iterator[None]:
    """Send what this process and its children print to stderr meanwhile, so that stdout holds the
    result alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def tell(line: str) -> None:
    """Print a line to stderr, at once: stdout holds the result alone."""
    print(line, file=sys.stderr, flush=True)


def without_path(said: str, place: str) -> str:
    """Return what is said of the artifact ``place``, ``<kind>/<key>``, without its path, behind
    which a column would not show the rest.

    >>> without_path("runs/store/policy/p/a.bin is missing", "policy/p")
    'a.bin is missing'
    """
    return re.sub(rf"\S*\b{re.escape(place)}/?", "", said).strip()


def drop_closed_stdout() -> bool:
    """Return whether nobody reads stdout any more (``| head -1``); what is left for it is dropped
    then, instead of an error when the process ends."""
    watched = select.poll()
    watched.register(1, 0)
    if not any(events & select.POLLERR for _, events in watched.poll(0)):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return True


def terminal_width() -> int:
    """Return the terminal's width in cells, or ``WIDTH`` where there is none."""
    return shutil.get_terminal_size((WIDTH, 0)).columns


def table_lines(
    rows: Sequence[Row], columns: Sequence[str], width: int, *, null: str = "null"
) -> list[str]:
    """Return a table at most ``width`` cells wide, long values cut with an ellipsis.

    Where the columns do not fit side by side, heads above numbers are cut, too, and numbers have
    three digits; where even that is too wide, each row is a record with a line per column.
    """
    right = [
        bool(rows) and all(type(row[name]) in (int, float, NoneType) for row in rows)
        for name in columns
    ]
    heads = [_cell(name, width) for name in columns]
    room = width - len(GAP) * (len(columns) - 1)
    texts, widths = [], None
    for digits in (6, 3):
        texts = [
            [null if row[name] is None else _cell(row[name], width, digits) for name in columns]
            for row in rows
        ]
        sizes = [[cell_len(text) for text in column] for column in zip(heads, *texts, strict=True)]
        least = [
            max(LEAST_NUMBER, *below) if is_number else LEAST
            for (_, *below), is_number in zip(sizes, right, strict=True)
        ]
        widths = _fitted([max(column) for column in sizes], least, room)
        if widths is not None:
            break
    if widths is None:
        return _records(heads, texts, width)
    lines = [_line(heads, widths, right), GAP.join("─" * size for size in widths)]
    return lines + [_line(cells, widths, right) for cells in texts]


def _fitted(natural: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Return the width of each column, the widest cut first, to what all of ``room`` allows them;
    None where one would have less than its ``least``."""
    for cap in range(max(natural), 0, -1):
        widths = [min(n, max(cap, low)) for n, low in zip(natural, least, strict=True)]
        if sum(widths) <= room:
            return widths
    return None


def _records(heads: Sequence[str], texts: Sequence[Sequence[str]], width: int) -> list[str]:
    label = min(max(map(cell_len, heads)), width // 3)
    lines = []
    for number, cells in enumerate(texts, start=1):
        title = f"── {number} "
        lines.append(title + "─" * (width - len(title)))
        room = max(width - label - len(GAP), 1)
        lines += [
            f"{_cut(head, label)}{GAP}{_cut(text, room)}".rstrip()
            for head, text in zip(heads, cells, strict=True)
        ]
    return lines or [GAP.join(heads)]


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        text.rjust(width) if number and len(text) <= width else _cut(text, width)
        for text, width, number in zip(cells, widths, right, strict=True)
    ]
    return GAP.join(padded).rstrip()


def _cut(text: str, width: int) -> str:
    """Return ``text`` in exactly ``width`` cells."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + "…"


def _cell(value: Any, width: int, digits: int = 6) -> str:
    """Return a value on one line. Characters that would move the cursor are written out: the text
    may be a model's."""
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    text = _field(value)[: width + 1]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _field(value: Any) -> str:
    """Return a value as text, whole; "" for null, JSON for lists and structures."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(_plain(value), ensure_ascii=False)
    return str(value)


def _plain(value: Any) -> Any:
    """Return a value of JSON: what is not finite is null, what JSON lacks is text."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)
