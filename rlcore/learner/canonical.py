"""A learner's training state as saved, whatever ranks and ZeRO stage wrote it: every parameter is
one flattened whole, of which each rank's files hold ranges.

A rank's manifest says which range of a parameter it wrote, and after how many optimizer steps; its
tensors are one safetensors file per role (fp32 weights, first and second moments of AdamW). A rank
of any other layout reads its own ranges out of theirs.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from schemas.errors import UserError

WEIGHTS = "weights"
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Range:
    """``numel`` elements from ``start`` of a flattened parameter, in the files ``stem``."""

    start: int
    numel: int
    stem: Path


@dataclass(frozen=True, slots=True)
class SavedParameter:
    """A parameter: its ranges tile it, in order. ``step``: None where it was never stepped."""

    shape: tuple[int, ...]
    step: int | None
    ranges: tuple[Range, ...]


def stem_of(directory: Path, rank: int) -> Path:
    """Return what the names of a rank's files begin with."""
    return directory / f"rank{rank:05d}"


def role_file(stem: Path, role: str) -> Path:
    """Return the file of ``role``, weights or a moment."""
    return stem.with_name(f"{stem.name}.{role}.safetensors")


class SavedState:
    """The training state in ``directory``, from the manifests of all ranks that wrote it.

    Raises UserError where a file is missing or damaged, and where the ranges do not hold every
    element of a parameter exactly once.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manifest = read_manifest(stem_of(directory, 0))
        self.layout: dict[str, Any] = self.manifest["layout"]
        ranks = range(self.layout["world_size"])
        # Without ZeRO every rank has the whole state, and older files have it once per rank.
        whole = self.layout["zero_stage"] == 0
        stems = [stem_of(directory, rank) for rank in (ranks[:1] if whole else ranks)]
        self.parameters = dict(self._merged(stems))
        self._open: dict[Path, Any] = {}

    def _merged(self, stems: list[Path]) -> Iterator[tuple[str, SavedParameter]]:
        found: dict[str, list[tuple[Range, dict[str, Any]]]] = {}
        for stem in stems:
            manifest = read_manifest(stem)
            if manifest["version"] != self.manifest["version"]:
                raise self._refused(
                    f"{stem.name} saved version {manifest['version']} of the weights, rank 0"
                    f" version {self.manifest['version']}"
                )
            for name, entry in manifest["parameters"].items():
                piece = Range(entry["start"], entry["numel"], stem)
                found.setdefault(name, []).append((piece, entry))
        for name, pieces in found.items():
            pieces.sort(key=lambda piece: piece[0].start)
            first = pieces[0][1]
            end = 0
            for piece, entry in pieces:
                if piece.start != end:
                    fault = "twice" if piece.start < end else "by no rank"
                    low, high = sorted((piece.start, end))
                    raise self._refused(f"elements {low} to {high} of {name} were saved {fault}")
                end = piece.start + piece.numel
                for what in ("shape", "step"):
                    if entry[what] != first[what]:
                        raise self._refused(
                            f"ranks saved {name} with {what} {first[what]} and {entry[what]}"
                        )
            shape = tuple(first["shape"])
            if end != prod(shape):
                raise self._refused(f"{name} has {prod(shape)} elements, of which {end} were saved")
            yield name, SavedParameter(shape, first["step"], tuple(piece for piece, _ in pieces))

    def read(self, name: str, role: str, start: int, numel: int) -> torch.Tensor:
        """Return [numel], fp32: elements from ``start`` of the flattened parameter ``name``.

        Raises UserError where a file is damaged, and for a moment that is not finite: AdamW would
        spread it over all that follows.
        """
        parts = []
        for piece in self.parameters[name].ranges:
            low, high = max(start, piece.start), min(start + numel, piece.start + piece.numel)
            if low < high:
                path = role_file(piece.stem, role)
                saved = self._tensor(path, name)
                if tuple(saved.get_shape()) != (piece.numel,):
                    raise damaged(path, f"{name} has {saved.get_shape()} of {piece.numel} elements")
                parts.append(saved[low - piece.start : high - piece.start])
        merged = parts[0] if len(parts) == 1 else torch.cat(parts)
        if role != WEIGHTS and not bool(torch.isfinite(merged).all()):
            raise self._refused(f"{role} of {name} is not finite")
        return merged

    def _tensor(self, path: Path, name: str) -> Any:
        try:
            if path not in self._open:
                self._open[path] = safe_open(path, "pt")  # pyright: ignore[reportPrivateImportUsage]
            return self._open[path].get_slice(name)
        except (OSError, SafetensorError) as error:
            raise damaged(path, error) from error

    def _refused(self, fault: str) -> UserError:
        return UserError(
            f"checkpoint {self.directory} is damaged: {fault}; take another checkpoint, or restart"
            " the stage"
        )


def read_manifest(stem: Path) -> dict[str, Any]:
    """Return a rank's manifest. Raises UserError when it is missing or damaged."""
    path = Path(f"{stem}.json")
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a directory that a learner saved")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        missing = {"layout", "version", "last", "parameters"} - manifest.keys()
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except (ValueError, AttributeError) as error:
        raise damaged(path, error) from error
    return manifest


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file. Raises UserError when it is missing or damaged."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, fault: object) -> UserError:
    """Return the error for a file of a checkpoint that cannot be read."""
    return UserError(
        f"{path} is missing or damaged ({fault}); take another checkpoint, or restart the stage"
    )
