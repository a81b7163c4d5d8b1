"""What is being read is not pruned, on a local store and on S3; a dead reader holds nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.learner.checkpoints import KIND, Checkpoints
from rlcore.store.artifacts import ArtifactStore, Lineage
from tests.rlcore.conftest import bucket, s3_server

__all__ = ["bucket", "s3_server"]  # fixtures
pytestmark = pytest.mark.timeout(60)
MADE = Lineage("r", "c")

READER = """
import sys
from rlcore.store.artifacts import ArtifactStore
with ArtifactStore(sys.argv[1], writer="a reader").pin("checkpoint", "k/000001"):
    print("reads", flush=True)
    sys.stdin.read()
"""


def filled(root: str, folder: Path) -> tuple[ArtifactStore, Checkpoints]:
    """Return a store with the checkpoints 1, 2 and 3 of the stage run ``k``."""
    store = ArtifactStore(root)
    folder.mkdir()
    (folder / "weights").write_text("w")
    for step in (1, 2, 3):
        store.put(KIND, f"k/{step:06d}", directory=folder, lineage=MADE)
    return store, Checkpoints(store, "k", MADE)


@pytest.mark.parametrize("where", ["local", "s3"])
def test_pruning_of_a_checkpoint_that_is_read_waits(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = str(tmp_path / "store") if where == "local" else request.getfixturevalue("bucket")
    store, checkpoints = filled(root, tmp_path / "files")
    with store.pin(KIND, "k/000001"), store.pin(KIND, "k/000001"):
        checkpoints.keep({3})
        assert checkpoints.steps() == [1, 3]
        assert store.being_read() == {f"{KIND}/k/000001"}
    checkpoints.keep({3})
    assert checkpoints.steps() == [3]


def test_the_pin_of_a_killed_reader_holds_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store, checkpoints = filled(str(root), tmp_path / "files")
    command = [sys.executable, "-c", READER, str(root)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reads\n"
        checkpoints.keep({3})
        assert checkpoints.steps() == [1, 3]
        reader.kill()
        reader.wait()
    assert store.being_read() == set()
    checkpoints.keep({3})
    assert checkpoints.steps() == [3]
    assert [path for path in (root / ".leases").iterdir() if path.name.startswith("pin")] == []
