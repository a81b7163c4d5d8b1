"""What is said to a process that prepares data and what it answers: JSON, and tables as Arrow IPC,
so that neither side can execute what the other sends."""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from rlcore.data.prepare_part import Kept, Part, PartColumns, Prepared, Work
from rlcore.data.rows import RawTable, Row
from rlcore.models.tokenizer import load_saved, tokenizer_file
from schemas.data import DataSection
from schemas.errors import UserError

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

_JSON_FILES = (".json", ".jsonl")
_PART = ("number", "reading", "source", "form", "start")
_ARRAYS = ("index", "split", "draw", "uid", "tokens")
_ROW = tuple(field.name for field in fields(Row))
_TABLE = tuple(field.name for field in fields(RawTable) if field.name != "rows")


def encode_setup(tokenizer: "ChatTokenizer", work: Work, folder: Path) -> bytes:
    """Return what a process needs before its first part; the tokenizer is saved into ``folder``."""
    tokenizer.save_pretrained(folder)
    setup = {
        "tokenizer": [str(folder), type(tokenizer).__module__, type(tokenizer).__qualname__],
        "name": tokenizer.name_or_path,
        "data": work.data.model_dump(mode="json"),
        "tools": [dict(tool) for tool in work.tools],
        "sft_max_tokens": work.sft_max_tokens,
        "folder": None if work.folder is None else str(work.folder),
        "unscored": work.unscored,
    }
    return json.dumps(setup).encode()


def decode_setup(message: bytes) -> tuple["ChatTokenizer", Work]:
    """Return what ``encode_setup`` was given."""
    setup = json.loads(message)
    tokenizer = load_saved(*setup["tokenizer"])
    tokenizer.name_or_path = setup["name"]
    folder = None if setup["folder"] is None else Path(setup["folder"])
    data = DataSection.model_validate(setup["data"])
    work = Work(data, setup["tools"], setup["sft_max_tokens"], folder, setup["unscored"])
    return tokenizer, work


def tokenizer_digest(tokenizer: "ChatTokenizer") -> str:
    """Return the hash of all that decides how chats become tokens."""
    marks = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    parts = [tokenizer_file(tokenizer), tokenizer.chat_template, marks]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def encode_part(part: Part) -> bytes | None:
    """Return ``part``; None where its rows hold values that JSON has not, as dates."""
    said: dict[str, Any] = {name: getattr(part, name) for name in _PART}
    said["made"] = [{name: getattr(row, name) for name in _ROW} for row in part.made]
    if (raw := part.raw) is not None:
        table = {name: getattr(raw, name) for name in _TABLE}
        said["raw"] = {**table, "columns": dict(raw.columns), "rows": raw.rows}
    try:
        text = json.dumps(said)
    except (TypeError, ValueError):
        return None
    if raw is None or raw.source.lower().endswith(_JSON_FILES):
        return text.encode()
    # Tuples become lists, and keys that are numbers text.
    return text.encode() if json.loads(text)["raw"]["rows"] == raw.rows else None


def decode_part(message: bytes) -> Part:
    """Return what ``encode_part`` was given."""
    said = json.loads(message)
    raw = RawTable(**said["raw"]) if "raw" in said else None
    made = [Row(**row) for row in said["made"]]
    return Part(raw=raw, made=made, **{name: said[name] for name in _PART})


def encode_answer(done: Prepared) -> list[bytes]:
    """Return ``done`` as messages, of which the first says how many follow."""
    tables = [done.prompts, done.demonstrations]
    held = [None if table is None else table.columns.held for table in tables]
    blobs = [_ipc(frame) for frame in done.rejects.values()]
    for table, frame in zip(tables, held, strict=True):
        if table is not None:
            blobs.append(_ipc(_arrays(table)))
            blobs += [_ipc(frame)] if isinstance(frame, pl.DataFrame) else []
    said = {
        "number": done.number,
        "reading": done.reading,
        "source": done.source,
        "before": done.before,
        "rejects": list(done.rejects),
        "error": None if done.error is None else [done.error[0], str(done.error[1])],
        "tables": [_kind(frame) for frame in held],
        "blobs": len(blobs),
    }
    return [json.dumps(said).encode(), *blobs]


def decode_answer(first: bytes, blobs: Iterator[bytes]) -> Prepared:
    """Return what ``encode_answer`` was given; ``blobs``: the messages after the first. Raises
    RuntimeError where the process could not answer."""
    said = json.loads(first)
    if "failed" in said:
        raise RuntimeError(f"a process that prepares rows failed:\n{said['failed']}")
    done = Prepared(said["number"], said["reading"], said["source"], Counter(said["before"]))
    done.rejects = {(stage, which): _frame(next(blobs)) for stage, which in said["rejects"]}
    if said["error"] is not None:
        done.error = (said["error"][0], UserError(said["error"][1]))
    done.prompts, done.demonstrations = (_kept(kind, blobs) for kind in said["tables"])
    return done


def _kind(held: pl.DataFrame | Path | None) -> str | None:
    """Return the path of a table in a file; "" for one that follows."""
    return None if held is None else str(held) if isinstance(held, Path) else ""


def _kept(kind: str | None, blobs: Iterator[bytes]) -> Kept | None:
    if kind is None:
        return None
    arrays = _frame(next(blobs))
    return Kept(  # copies: a view of one column keeps the message with all of them
        **{name: arrays[name].to_numpy().copy() for name in _ARRAYS},
        columns=PartColumns(Path(kind) if kind else _frame(next(blobs))),
    )


def _arrays(table: Kept) -> pl.DataFrame:
    return pl.DataFrame({name: getattr(table, name) for name in _ARRAYS})


def _ipc(frame: pl.DataFrame) -> bytes:
    sink = io.BytesIO()
    frame.write_ipc(sink)
    return sink.getvalue()


def _frame(content: bytes) -> pl.DataFrame:
    return pl.read_ipc(io.BytesIO(content))
