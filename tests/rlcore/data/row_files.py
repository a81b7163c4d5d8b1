"""Rows in verl's form, and files of rows."""

import bz2
import gzip
import json
import lzma
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rlcore.data.rows import RawTable
from rlcore.data.sources import open_source
from schemas.data import ReadSource

VERL_ROWS = [
    {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": f"What is {n} + {n}?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * n)},
        "extra_info": {"split": "train", "index": n},
    }
    for n in range(3000)
]


def read_source(source: ReadSource, where: str = "data.sources") -> list[RawTable]:
    """Return the tables of a source with their rows."""
    return [replace(table, rows=list(read())) for table, read in open_source(source, where)]


def write(path: Path, rows: list[dict]) -> Path:
    """Write ``rows`` in the format that the suffix names; return ``path``."""
    name = path.name.lower()
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    is_array = ".json" in path.suffixes
    text = json.dumps(rows) if is_array else "".join(json.dumps(row) + "\n" for row in rows)
    compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    path.write_bytes(compress.get(path.suffix.lower(), bytes)(text.encode()))
    return path


MATH_ROWS = [
    {
        "problem": f"What is ${n} + {n}$?",
        "solution": rf"It is $\boxed{{{2 * n}}}$.",
        "level": f"Level {1 + n % 5}",
        "type": "Geometry" if n % 5 == 3 else "Algebra",
    }
    for n in range(10)
]
