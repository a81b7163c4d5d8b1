"""The export as an artifact: the verified model directory and its model card, published
atomically."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlcore.evaluation.hf_directory import write_verified
from rlcore.evaluation.model_card import ModelCard, render_card
from rlcore.models.adapter import ADAPTER_FOLDER
from rlcore.results.folders import EXPORT
from rlcore.store.checks import file_digest
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError

WEIGHTS = "*.safetensors"


def export_model(
    policy_dir: Path,
    out_dir: Path,
    *,
    dtype: str | None,
    card: ModelCard,
    trust_remote_code: bool = False,
    origin: ArtifactRef | None = None,
) -> dict[str, Any]:
    """Publish the policy of ``policy_dir`` as ``out_dir``; return what was published.

    Written to a hidden sibling, reloaded, compared (``write_verified``), described by
    README.md and ``export.json``, and renamed into place last; any difference or interruption
    leaves ``out_dir`` as it was. ``dtype`` None keeps the policy's. Keys of the result: name, those
    of ``Proof``, files (name -> bytes). An adapter that lies beside ``policy_dir`` is a folder in
    it. ``origin``: the artifact that the weights are of, where the directory itself becomes none:
    kind, key and sha256 of it, and the digests of the files of weights, are added as ``origin``, so
    that its lineage can be followed.

    Raises ``UserError`` when ``out_dir`` holds something other than an earlier export,
    ``ExportError`` when the reloaded model is not the policy.
    """
    out_dir = out_dir.absolute()
    _check_target(out_dir)
    partial = out_dir.with_name(f".{out_dir.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a killed export
    partial.mkdir(parents=True)
    try:
        proof = write_verified(
            policy_dir, partial, dtype=dtype, trust_remote_code=trust_remote_code
        )
        if (adapter := policy_dir.parent / ADAPTER_FOLDER).is_dir():
            shutil.copytree(adapter, partial / ADAPTER_FOLDER)
        files = {
            str(file.relative_to(partial)): file.stat().st_size
            for file in sorted(partial.rglob("*"))
            if file.is_file()
        }
        record = {"name": card.name, **asdict(proof), "files": files}
        if origin is not None:
            weights = {path.name: file_digest(path) for path in sorted(partial.glob(WEIGHTS))}
            named = origin.model_dump(include={"kind", "key", "sha256"})
            record["origin"] = {**named, "weights": weights}
        (partial / "README.md").write_text(render_card(card, proof), encoding="utf-8")
        (partial / EXPORT).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        put_in_place(out_dir, partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return record


def _check_target(out_dir: Path) -> None:
    """An export replaces an export or an empty directory, never anything else."""
    if not out_dir.exists():
        return
    if not out_dir.is_dir() or (any(out_dir.iterdir()) and not (out_dir / EXPORT).is_file()):
        raise UserError(
            f"export.directory = '{out_dir}' exists and is not an earlier export (it has no"
            f" {EXPORT}); give a new or empty directory"
        )


def put_in_place(out_dir: Path, partial: Path) -> None:
    """Rename ``partial`` to ``out_dir``; an earlier one is removed once the new one is there."""
    old = out_dir.with_name(f".{out_dir.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out_dir.exists():
        out_dir.rename(old)
    partial.rename(out_dir)
    shutil.rmtree(old, ignore_errors=True)
