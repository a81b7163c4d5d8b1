"""Content digests of what a run reads from outside the store: their part of the cache keys."""

from collections.abc import Mapping
from pathlib import Path, PurePath

from rlcore.data.sources import hub_dataset, source_files
from rlcore.store.outside import (
    Read,
    expanded_path,
    hub_read,
    read_directory_digest,
    read_file_digest,
)
from schemas.data import DataSection, FileSource, Gsm8kSource
from schemas.errors import UserError
from schemas.generated import GeneratedSource
from schemas.model import ModelSection


def data_digests(data: DataSection) -> dict[str, Read]:
    """Return a digest per file or hub dataset, by its role (``data.sources[0] train.jsonl``).

    Files (local or fsspec) count by sha256, hub datasets by name and revision: an unpinned name
    counts as unchanged. A pattern or a folder has a digest per file that it has now. Raises
    ``UserError`` for a file that does not exist or cannot be read.
    """
    digests: dict[str, Read] = {}
    for index, source in enumerate(data.sources):
        role = f"data.sources[{index}]"
        if isinstance(source, GeneratedSource):
            continue
        files = source_files(source, role)
        if not files:
            digests[role] = hub_read(*hub_dataset(source), "dataset")
            continue
        setting = f"{role}.path"
        if isinstance(source, Gsm8kSource):
            setting = f"{setting if source.path else 'GSM8K_DIR'}: the GSM8K file"
        for number, file in enumerate(files):
            name = f"{role} {PurePath(file).name}"
            if isinstance(
                source, FileSource
            ):  # by position: files are read in order of their names
                is_one = files == [expanded_path(source.path, setting)]
                name = role if is_one else f"{role}[{number}]"
            digests[name] = read_file_digest(file, setting)
    return digests


def check_unchanged(data: DataSection, reads: Mapping[str, str]) -> None:
    """Raise UserError where the sources are no longer what ``reads``, by role, says: the rows that
    were read meanwhile are not those that a key stands for."""
    now = data_digests(data)
    before = {role: read for role, read in reads.items() if role.startswith("data.sources[")}
    changed = [role for role in {**before, **now} if before.get(role) != now.get(role)]
    if changed:
        raise UserError(
            f"{changed[0]} changed while it was read (a file was added, written or removed); run"
            " again once it is whole, and write new files under another name first"
        )


def model_digests(model: ModelSection) -> dict[str, Read]:
    """Return the digest of the model that ``model.path`` names, by its role ``model``; else {}.

    A local directory counts by the names and sha256 of its files, a hub name as in
    ``data_digests``. Raises ``UserError`` for a file that cannot be read.
    """
    if model.path is None:
        return {}
    local = Path(model.path).expanduser()
    if local.is_dir():
        return {"model": read_directory_digest(local, "model.path")}
    return {"model": hub_read(model.path, model.revision, "model")}
