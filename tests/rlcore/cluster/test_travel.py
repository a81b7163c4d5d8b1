"""What a worker on another host gets in place of paths, and what comes back of what it writes."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from ray.exceptions import OwnerDiedError

from rlcore.cluster import travel
from rlcore.cluster.ray_cluster import RayCluster
from rlcore.cluster.travel import Traveller, Written, named, receive, sent, take_home
from rlcore.cluster.types import Placement, WorkerDied
from rlcore.models.weight_digest import WeightStamp, WeightUpdate
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef

HERE = "tests.rlcore.cluster.test_travel"
HOME, AWAY = "10.0.0.1", "10.0.0.2"


@dataclass(frozen=True, slots=True)
class Spec:
    """Refuses, as that of a learner does, what is no folder of its host."""

    model_dir: str
    dtype: str = "float32"

    def __post_init__(self) -> None:
        assert Path(self.model_dir).is_dir()


class Learner:
    """Holds what its files say."""

    def __init__(self, spec: Spec) -> None:
        self.folder = Path(spec.model_dir)

    def read(self) -> tuple[str, str]:
        return str(self.folder), (self.folder / "config.json").read_text()

    def save(self, directory: str) -> str:
        Path(directory).mkdir()
        (Path(directory) / "rank-1.json").write_text("saved")
        return "done"

    def publish(self, version: int | None = None, kept: int = 1) -> WeightUpdate:
        return WeightUpdate(WeightStamp(0, "d"), str(self.folder / "config.json"), {})

    def load_weights(self, update: WeightUpdate) -> tuple[str, str]:
        return update.path, Path(update.path).read_text()


@pytest.fixture
def store(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that all hosts reach, and the cache of the first of them."""
    cached(monkeypatch, tmp_path / "here")
    return bucket


def stored(store: str, tmp_path: Path) -> ArtifactRef:
    made = tmp_path / "made"
    (made / "model").mkdir(parents=True)
    (made / "model" / "config.json").write_text("weights")
    return ArtifactStore(store).put("policy", "p", directory=made, lineage=Lineage("", ""))


def cached(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The cache of the host that computes from now on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


def worker(host: str) -> Traveller:
    return Traveller(f"{HERE}:Learner", host, elsewhere=host != HOME)


def test_a_folder_of_an_artifact_is_one_of_each_host(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker found no such path on its host, or another model there."""
    ref = stored(store, tmp_path)
    here = ArtifactStore(store).directory(ref) / "model"
    spec = Spec(str(here), dtype="/no/artifact")
    folders = named([spec, str(here), 3, "/no/artifact"])
    assert list(folders) == [str(here)]
    cached(monkeypatch, tmp_path / "there")
    away = worker(AWAY)
    away.build((spec,), folders)
    path, text = away.call("read", (), {}, {})
    assert text == "weights"
    assert path.startswith(str(tmp_path / "there"))


def test_a_store_that_fails_is_told_by_the_first_call(store: str, tmp_path: Path) -> None:
    ref = stored(store, tmp_path)
    spec = Spec(str(ArtifactStore(store).directory(ref) / "model"))
    folders = {k: replace(v, below="gone") for k, v in named([spec]).items()}
    away = worker(AWAY)
    away.build((spec,), folders)
    with pytest.raises(AssertionError):
        away.call("read", (), {}, {})


def built(store: str, tmp_path: Path, host: str) -> Traveller:
    ref = ArtifactStore(store).find("policy", "p") or stored(store, tmp_path)
    made = worker(host)
    made.build((Spec(str(ArtifactStore(store).directory(ref) / "model")),), {})
    return made


def test_what_is_saved_on_another_host_comes_home(
    store: str, tmp_path: Path, on_ray: RayCluster
) -> None:
    target = tmp_path / "scratch" / "actor"
    written = built(store, tmp_path, AWAY).call("save", (str(target),), {}, {})
    assert isinstance(written, Written)
    assert not target.exists()
    assert take_home(written, str(target)) == "done"
    assert (target / "rank-1.json").read_text() == "saved"
    home = built(store, tmp_path, HOME)
    assert home.call("save", (str(tmp_path / "own"),), {}, {}) == "done"


def test_weights_are_read_from_memory_on_one_host_and_sent_to_others(
    store: str, tmp_path: Path, on_ray: RayCluster
) -> None:
    home, away = (built(store, tmp_path, host) for host in (HOME, AWAY))
    update = home.call("publish", (), {"kept": 1}, {})
    assert home.call("load_weights", (update,), {}, {}) == (update.path, "weights")
    path, text = away.call("load_weights", (update,), {}, {})
    assert text == "weights"
    assert path != update.path
    assert not Path(path).exists(), "memory of the host fills"


def test_on_one_host_nothing_is_sent(store: str, tmp_path: Path) -> None:
    assert built(store, tmp_path, HOME).call("publish", (), {}, None).parts == ()


@pytest.mark.parametrize("size", [0, 1, 10, 11, 50])
def test_a_file_arrives_whole_whatever_its_length(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_ray: RayCluster
) -> None:
    """The last part is shorter than the others, and what is sent may be written over at once."""
    monkeypatch.setattr(travel, "PART_BYTES", 10)
    data = bytes(range(size))
    (tmp_path / "file").write_bytes(data)
    parts = sent(tmp_path / "file")
    (tmp_path / "file").write_bytes(bytes(size))
    receive(parts, tmp_path / "there")
    assert (tmp_path / "there").read_bytes() == data


class Sender:
    """Publishes what ``path`` holds."""

    def __init__(self, path: str) -> None:
        self.path = path

    def publish(self) -> WeightUpdate:
        return WeightUpdate(WeightStamp(0, "d"), self.path, {}, parts=sent(self.path))


class Receiver:
    """Reads what was sent into ``folder``."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / "received"

    def read(self, update: WeightUpdate) -> str:
        receive(update.parts, self.path)
        return self.path.read_text()

    def lose(self) -> None:
        """What Ray raises where the sender's host is lost."""
        raise OwnerDiedError("00" * 28, b"", "")


def test_weights_pass_from_worker_to_worker(tmp_path: Path, on_ray: RayCluster) -> None:
    """The flow holds the update only: an engine that is replaced loads it once more."""
    old, new = "old weights" * 10**5, "new weights" * 10**5  # Ray keeps what is small elsewhere
    (tmp_path / "weights").write_text(old)
    here = Placement(threads=1)
    sender = on_ray.spawn(f"{HERE}:Sender", str(tmp_path / "weights"), name="s", placement=here)
    receiver = on_ray.spawn(f"{HERE}:Receiver", str(tmp_path), name="r", placement=here)
    update = sender.start("publish").result(60.0)
    (tmp_path / "weights").write_text(new)
    for _ in range(2):
        assert receiver.start("read", update).result(60.0) == old
    with pytest.raises(WorkerDied, match="worker 'r' died during lose: the host of what was sent"):
        receiver.start("lose").result(60.0)  # or an engine waits for a host that is gone
    for each in (sender, receiver):
        each.stop()
