"""Where a run that is struck keeps its results: a folder, a small disk, a bucket."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.bucket import BUCKET, Bucket
from tests.chaos.forks import Forks, Run
from tests.flows import small_run

MANIFEST = "manifest.json"
SMALL = {
    **small_run.SMALL,
    **small_run.INLINE,
    "data.sources.0.demonstrations": 128,
    "sft.max_steps": 8,
    "rl.rollout.prompts": 2,
    "rl.rollout.max_new_tokens": 8,
    "rl.validation.every": 4,
    "rl.validation.prompts": 4,
    "evaluate.max_prompts": 4,
    "evaluate.max_new_tokens": 8,
}
CHUNK = 2**20


@dataclass(frozen=True)
class Place:
    """Where a run and its reruns work.

    ``folder``: their working directory. ``store``: as the recipe names it. ``names()``: the
    manifests that are in it; ``read(name)``: the content of one.
    """

    folder: Path
    store: str
    forks: Forks
    variables: dict[str, str]
    names: Callable[[], list[str]]
    read: Callable[[str], bytes]

    def start(self, point: str = "") -> Run:
        """Start a run, which kills itself at ``point`` (``tests.flows.crash_points``) if one is
        named."""
        overrides = json.dumps({**SMALL, "store": self.store})
        return self.forks.start(self.folder, [point, "quickstart", overrides], self.variables)

    def digest(self) -> str:
        """Return the sha256 of the exported weights."""
        manifests = [json.loads(self.read(name)) for name in self.names()]
        (found,) = [manifest for manifest in manifests if manifest["kind"] == "export"]
        return found["files"]["model/model.safetensors"]["sha256"]


def local(folder: Path, forks: Forks, store: Path) -> Place:
    """Return the place ``folder`` with the store ``store``, as the runs name it."""

    def names() -> list[str]:
        return list(_manifests(forks.seen_by(store)))

    return Place(folder, str(store), forks, {}, names, lambda name: Path(name).read_bytes())


def remote(folder: Path, forks: Forks, bucket: Bucket, prefix: str) -> Place:
    """Return the place ``folder`` with a store in a bucket."""
    top = f"{BUCKET}/{prefix}"
    own = {**bucket.environment, "XDG_CACHE_HOME": str(folder / "cache")}

    def names() -> list[str]:
        return [name for name in bucket.names(top) if name.endswith(f"/{MANIFEST}")]

    return Place(folder, f"s3://{top}", forks, own, names, bucket.read)


def remove(place: Place) -> None:
    """Remove what is in the place, on the small disk too."""
    shutil.rmtree(place.folder, ignore_errors=True)
    if "://" not in place.store:
        shutil.rmtree(place.forks.seen_by(Path(place.store)), ignore_errors=True)


def fill(file: Path) -> None:
    """Make ``file`` as large as its disk lets it."""
    with file.open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(CHUNK))
        except OSError:
            return


def _manifests(root: Path) -> Iterator[str]:
    """Yield the manifests below ``root``, in which others write; of staged artifacts none."""
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        if MANIFEST in files:
            yield os.path.join(folder, MANIFEST)
