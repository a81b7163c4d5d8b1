"""What a worker on another host gets in place of paths, and what comes back of what it writes."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rlcore.cluster import travel
from rlcore.cluster.travel import Exchange, Seat, Traveller, Written, named, take_home
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


def worker(exchange: Exchange, host: str) -> Traveller:
    return Traveller(f"{HERE}:Learner", Seat(host, host != HOME, exchange.url))


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
    away = worker(Exchange.begin(store), AWAY)
    away.build((spec,), folders)
    path, text = away.call("read", (), {}, {})
    assert text == "weights"
    assert path.startswith(str(tmp_path / "there"))


def test_a_store_that_fails_is_told_by_the_first_call(store: str, tmp_path: Path) -> None:
    ref = stored(store, tmp_path)
    spec = Spec(str(ArtifactStore(store).directory(ref) / "model"))
    folders = {k: replace(v, below="gone") for k, v in named([spec]).items()}
    away = worker(Exchange.begin(store), AWAY)
    away.build((spec,), folders)
    with pytest.raises(AssertionError):
        away.call("read", (), {}, {})


def built(store: str, tmp_path: Path, exchange: Exchange, host: str) -> Traveller:
    ref = ArtifactStore(store).find("policy", "p") or stored(store, tmp_path)
    made = worker(exchange, host)
    made.build((Spec(str(ArtifactStore(store).directory(ref) / "model")),), {})
    return made


def test_what_is_saved_on_another_host_comes_home(store: str, tmp_path: Path) -> None:
    exchange = Exchange.begin(store)
    target = tmp_path / "scratch" / "actor"
    written = built(store, tmp_path, exchange, AWAY).call("save", (str(target),), {}, {})
    assert isinstance(written, Written)
    assert not target.exists()
    assert take_home(exchange, written, str(target)) == "done"
    assert (target / "rank-1.json").read_text() == "saved"
    home = built(store, tmp_path, exchange, HOME)
    assert home.call("save", (str(tmp_path / "own"),), {}, {}) == "done"


def test_weights_are_read_from_memory_on_one_host_and_from_the_store_on_others(
    store: str, tmp_path: Path
) -> None:
    exchange = Exchange.begin(store)
    home = built(store, tmp_path, exchange, HOME)
    away = built(store, tmp_path, exchange, AWAY)
    update = home.call("publish", (), {"kept": 1}, {})
    assert home.call("load_weights", (update,), {}, {}) == (update.path, "weights")
    path, text = away.call("load_weights", (update,), {}, {})
    assert text == "weights"
    assert path != update.path
    assert not Path(path).exists(), "memory of the host fills"


def test_only_the_weights_that_may_be_loaded_again_are_kept(store: str, tmp_path: Path) -> None:
    exchange = Exchange.begin(store)
    home = built(store, tmp_path, exchange, HOME)
    first, second = (home.call("publish", (None, 2), {}, {}) for _ in range(2))
    third = home.call("publish", (None, 2), {}, {})
    with pytest.raises(FileNotFoundError):
        exchange.get(first.name, tmp_path / "gone")
    for update in (second, third):
        exchange.get(update.name, tmp_path / "there")
    exchange.close()
    with pytest.raises(FileNotFoundError):
        exchange.get(third.name, tmp_path / "gone")


def test_on_one_host_nothing_is_exchanged(store: str, tmp_path: Path) -> None:
    home = built(store, tmp_path, Exchange.begin(store), HOME)
    assert home.call("publish", (), {}, None).name == ""


def test_what_a_killed_run_left_goes_a_week_later(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_text("old")
    killed = Exchange.begin(store)
    name = killed.put(tmp_path / "weights")
    Exchange.begin(store)
    killed.get(name, tmp_path / "there")
    monkeypatch.setattr(travel, "ABANDONED_S", -2)
    Exchange.begin(store)
    with pytest.raises(FileNotFoundError):
        killed.get(name, tmp_path / "gone")
