"""Prepared rows in the forms of verl and TRL, as Parquet files that their own loaders read.

verl 0.9.1 (``verl/utils/dataset/rl_dataset.py``): ``prompt`` as messages, ``data_source``,
``ability``, ``reward_model`` {style, ground_truth}, ``extra_info``. TRL 1.16 (``docs/source/
dataset_formats.md``), conversational: of prompts ``prompt``, with ``ground_truth``, ``data_source``
and each key of ``extra_info`` as columns for reward functions; of demonstrations ``prompt`` and
``completion``. Our reader (``normalise``) gives the same rows of both.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rlcore.data.conversation import policys_part
from schemas.errors import UserError

_MESSAGES = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))
_OF_TRL = ("prompt", "completion", "messages", "ground_truth", "data_source", "chosen", "rejected")
RENAMED = "extra_"  # before a key of extra_info that TRL or our reader would take for its own


def write_rows(prompts: pl.DataFrame, demonstrations: pl.DataFrame, form: str, out: Path) -> Path:
    """Write the rows of a dataset into the new folder ``out``; return it.

    ``form``: one of ``FORMS``. A file per split, named after it; demonstrations, which verl's RL
    has no use for, as ``sft-<split>.parquet``. The token ids stay behind: they are of one
    tokenizer. Raises UserError where ``out`` exists; nothing half-written is ever there.
    """
    if out.exists():
        raise UserError(f"--out {out} is there already; remove it, or give another folder")
    tables = {
        f"{split}.parquet": FORMS[form](rows.to_dicts())
        for (split,), rows in prompts.partition_by("split", as_dict=True).items()
    }
    if form == "trl":
        tables |= {
            f"sft-{split}.parquet": _trl_demonstrations(rows.to_dicts())
            for (split,), rows in demonstrations.partition_by("split", as_dict=True).items()
        }
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    try:
        for name, table in tables.items():
            pq.write_table(table, partial / name)
        partial.chmod(0o755)
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def _verl(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns = {
        "data_source": _texts(rows, "data_source"),
        "prompt": _chats(row["prompt"] for row in rows),
        "ability": _texts(rows, "ability"),
        "reward_model": pa.StructArray.from_arrays(
            [_texts(rows, "reward_style"), _texts(rows, "ground_truth")], ["style", "ground_truth"]
        ),
    }
    extra = _extra(rows)
    if extra:  # Parquet cannot store a structure without fields
        arrays = list(extra.values())
        columns["extra_info"] = pa.StructArray.from_arrays(arrays, list(extra))
    return pa.table(columns)


def _trl(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    extra = {RENAMED * (key in _OF_TRL) + key: values for key, values in _extra(rows).items()}
    columns = {
        "prompt": _chats(row["prompt"] for row in rows),
        "ground_truth": _texts(rows, "ground_truth"),
        "data_source": _texts(rows, "data_source"),
    }
    return pa.table({**columns, **extra})


def _trl_demonstrations(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    cuts = [policys_part(row["messages"]) for row in rows]
    return pa.table(
        {
            "prompt": _chats(r["messages"][:cut] for r, cut in zip(rows, cuts, strict=True)),
            "completion": _chats(r["messages"][cut:] for r, cut in zip(rows, cuts, strict=True)),
            "data_source": _texts(rows, "data_source"),
        }
    )


FORMS: dict[str, Callable[[Sequence[Mapping[str, Any]]], pa.Table]] = {"verl": _verl, "trl": _trl}


def _texts(rows: Sequence[Mapping[str, Any]], column: str) -> pa.Array:
    return pa.array([row[column] for row in rows], pa.string())


def _chats(chats: Any) -> pa.Array:
    return pa.array(list(chats), _MESSAGES)


def _extra(rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
    """Return a column per key of ``extra_info``, null where a row lacks it."""
    infos = [json.loads(row["extra_info"]) for row in rows]
    keys = dict.fromkeys(key for info in infos for key in info)
    return {key: _column([info.get(key) for info in infos]) for key in keys}


def _column(values: Sequence[Any]) -> pa.Array:
    """Return values of JSON as one column, as JSON text where Parquet cannot hold them as they
    are: of several types, or structures of different keys or of none."""
    try:
        column = pa.array(values)
        if column.to_pylist() == values and _same_types(column, values):
            return column
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    return pa.array([None if value is None else json.dumps(value) for value in values], pa.string())


def _same_types(column: pa.Array, values: Sequence[Any]) -> bool:
    """Return whether ``column`` is read back from Parquet as ``values``, numbers as written."""
    if "struct<>" in str(column.type):
        return False
    return json.dumps(column.to_pylist()) == json.dumps(values)
