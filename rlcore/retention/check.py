"""All artifacts of a store read again, against their digests."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rlcore.store.artifacts import ArtifactError
from rlcore.store.checks import DamagedArtifact
from rlcore.store.local import LocalFiles, links_below
from rlcore.store.reader import ArtifactReader


@dataclass(frozen=True, slots=True)
class Checked:
    """An artifact that was read: bytes of its files, and what is wrong with it, if anything."""

    kind: str
    key: str
    bytes: int
    fault: str | None


def check_all(store: ArtifactReader) -> Iterator[Checked]:
    """Yield every artifact once it was read: manifest and its seal, names, sizes and digests of
    files. Of a bucket each is downloaded anew, into a folder that is removed after it.

    Raises ArtifactError where the store cannot be read.
    """
    for kind in store.kinds():
        for key in store.keys(kind):
            with TemporaryDirectory(prefix="rl-pipeline-") as folder:
                yield _check(ArtifactReader(store.root, cache=Path(folder)), kind, key)
    links = [] if "://" in store.root else links_below(LocalFiles(Path(store.root)))
    for link in links:
        kind, _, key = link.partition("/")
        fault = (
            f"{store.root}/{link} is a symbolic link, which nothing follows; put the folder there"
        )
        yield Checked(kind, key, 0, fault)


def _check(store: ArtifactReader, kind: str, key: str) -> Checked:
    try:
        manifest = store.peek(kind, key)
        if manifest is None:
            return Checked(kind, key, 0, None)  # removed meanwhile, as a whole
        for name in manifest.files:
            store.file(manifest, name)
        ref = store.find(kind, key)
        if ref is not None:
            store.check_seal(ref)
    except DamagedArtifact as damage:
        return Checked(kind, key, 0, damage.fault)
    except ArtifactError:
        if store.peek(kind, key) is None:
            return Checked(kind, key, 0, None)
        raise
    return Checked(kind, key, sum(entry.bytes for entry in manifest.files.values()), None)
