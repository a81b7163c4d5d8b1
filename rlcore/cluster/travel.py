"""How folders and weights reach a worker on another host: through the store.

A call keeps its arguments. With them goes what each path in them is a copy of, and the worker gets
a path of its own host; what it wrote comes back once its call has ended:

* A folder of an artifact is fetched from the store into the host's own cache, verified.
* Weights that a rank publishes are read from its memory on its own host (``path``), and from the
  store on others (``name``).
* What ``WRITTEN`` calls write is put into the store, and from there into the flow's folder.

All but artifacts lie below ``<store>/.exchange/<run>/``, which ends with the run.
"""

import fcntl
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.cluster.host_settings import socket_folder
from rlcore.cluster.worker_object import Shell
from rlcore.store.cache import origin_of

if TYPE_CHECKING:
    from schemas.artifacts import ArtifactRef

WRITTEN = {"save", "export_hf"}  # methods whose first argument names a folder that they write
PUBLISH, LOAD = "publish", "load_weights"
_FOLDER = ".exchange"
ABANDONED_S = 7 * 24 * 3600
NOTHING: Mapping[str, "Stored"] = {}


class Exchange:
    """Files of one run below ``url`` in a store that all hosts reach; they live until ``close``."""

    def __init__(self, url: str) -> None:
        import fsspec  # where it is used: most runs have one host, and each starts processes

        self.url = url
        self._fs, self._top = fsspec.url_to_fs(url)

    @classmethod
    def begin(cls, store: str) -> "Exchange":
        """Return that of a new run; those that runs which were killed left are removed a week
        later."""
        above, now = cls(f"{store.rstrip('/')}/{_FOLDER}"), int(time.time())
        with suppress(FileNotFoundError):
            for path in above._fs.ls(above._top, detail=False):
                begun = path.rstrip("/").rpartition("/")[2].partition("-")[0]
                if begun.isdecimal() and now - int(begun) > ABANDONED_S:
                    above._fs.rm(path, recursive=True)
        return cls(f"{above.url}/{now}-{uuid.uuid4().hex[:8]}")

    def put(self, path: str | Path) -> str:
        """Store one file; return its name here."""
        name = uuid.uuid4().hex
        self._fs.put_file(str(path), f"{self._top}/{name}")
        return name

    def get(self, name: str, path: Path) -> None:
        """Fetch it."""
        self._fs.get_file(f"{self._top}/{name}", str(path))

    def remove(self, name: str) -> None:
        """Remove it, if it is there."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._top}/{name}")

    def close(self) -> None:
        """Remove all."""
        with suppress(FileNotFoundError):
            self._fs.rm(self._top, recursive=True)


@dataclass(frozen=True, slots=True)
class Written:
    """What a call returned that wrote ``files`` of the exchange: relative path -> name."""

    value: Any
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class Stored:
    """A folder of an artifact, or one ``below`` it, wherever there is a copy."""

    store: str
    ref: "ArtifactRef"
    below: str

    def fetched(self) -> str:
        """Return the path of a copy on this host, verified."""
        from rlcore.store.reader import ArtifactReader

        with _one_at_a_time(self.ref.sha256):
            return str(ArtifactReader(self.store).directory(self.ref) / self.below)


def named(arguments: Iterable[Any]) -> dict[str, Stored]:
    """Return path -> what it is a copy of, for the texts in ``arguments`` of a call, and in fields
    of these, that are paths of an artifact's folder on this host."""
    texts = [text for argument in arguments for text in _texts(argument).values()]
    origins = {text: origin_of(text) for text in texts}
    return {text: Stored(*origin) for text, origin in origins.items() if origin is not None}


def arrived(argument: Any, folders: Mapping[str, Stored]) -> Any:
    """Return ``argument`` with paths of this host in place of those that ``folders`` names."""
    changed = {k: folders[v].fetched() for k, v in _texts(argument).items() if v in folders}
    if isinstance(argument, str):
        return changed.get("", argument)
    return replace(argument, **changed) if changed else argument


def _texts(argument: Any) -> dict[str, str]:
    """Return field -> text; "" for ``argument`` itself."""
    if isinstance(argument, str):
        return {"": argument}
    if not is_dataclass(argument):
        return {}
    held = {field.name: getattr(argument, field.name) for field in fields(argument)}
    return {name: value for name, value in held.items() if isinstance(value, str)}


@contextmanager
def _one_at_a_time(content: str) -> Iterator[None]:
    """Let one process of this host fetch an artifact, while the others wait for its copy."""
    folder = socket_folder() or tempfile.gettempdir()  # of this user's alone where there is one
    handle = os.open(f"{folder}/{content[:32]}.fetching", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a worker of a run on several hosts lies: at the address ``host``, ``elsewhere`` than
    the flow. ``exchange``: the URL of the run's, "" where the store is no bucket."""

    host: str
    elsewhere: bool
    exchange: str


class Traveller(Shell):
    """The object of a worker. ``seat``: None where the run has one host."""

    def __init__(self, target: str, seat: Seat | None) -> None:
        super().__init__(target)
        self._host, self._elsewhere = ("", False) if seat is None else (seat.host, seat.elsewhere)
        self._exchange = Exchange(seat.exchange) if seat is not None and seat.exchange else None
        self._published: list[str] = []

    def build(self, args: tuple[Any, ...], folders: Mapping[str, Stored] = NOTHING) -> None:
        """Build the object; ``folders``: see ``arrived``. What that raises, the calls do."""
        try:
            local = tuple(arrived(each, folders) for each in args)
        except Exception as failure:  # noqa: BLE001 - kept: raised by the caller's first call
            self._failure = failure
        else:
            super().build(local)

    def call(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        folders: Mapping[str, Stored] | None = None,
    ) -> Any:
        """Return what ``method`` returns. ``folders``: see ``arrived``; None where all workers lie
        on one host."""
        exchange = self._exchange
        if exchange is None or folders is None:
            return super().call(method, args, kwargs)
        if method == LOAD:
            return self._load(exchange, *args)
        if method in WRITTEN and self._elsewhere:
            return self._write(exchange, method, args)
        result = super().call(method, tuple(arrived(each, folders) for each in args), kwargs)
        if method == PUBLISH and result.path:
            kept = args[1] if len(args) > 1 else kwargs.get("kept", 1)
            return self._offer(exchange, result, kept)
        return result

    def _offer(self, exchange: Exchange, update: Any, kept: int) -> Any:
        """Put a ``WeightUpdate`` into the exchange, where the ``kept`` newest stay."""
        name = exchange.put(update.path)
        self._published.append(name)
        while len(self._published) > kept:
            exchange.remove(self._published.pop(0))
        return replace(update, host=self._host, name=name)

    def _load(self, exchange: Exchange, update: Any) -> Any:
        if update.host == self._host or not update.name:
            return super().call(LOAD, (update,), {})
        memory = Path("/dev/shm")
        folder = memory if memory.is_dir() else Path(tempfile.gettempdir())
        # ``models.weight_files`` removes files of this name once their process has ended.
        path = folder / f"rl-weights-{os.getpid()}-{uuid.uuid4().hex[:8]}.safetensors"
        try:
            exchange.get(update.name, path)
            return super().call(LOAD, (replace(update, path=str(path)),), {})
        finally:
            path.unlink(missing_ok=True)

    def _write(self, exchange: Exchange, method: str, args: tuple[Any, ...]) -> Written:
        """Call a method of ``WRITTEN`` with a folder of this host; what it wrote there, and beside
        it, goes into the exchange."""
        with tempfile.TemporaryDirectory(prefix="rl-pipeline-") as made:
            target = Path(made) / Path(args[0]).name
            value = super().call(method, (str(target), *args[1:]), {})
            found = [path for path in sorted(Path(made).rglob("*")) if path.is_file()]
            files = {path.relative_to(made).as_posix(): exchange.put(path) for path in found}
        return Written(value, files)


def take_home(exchange: Exchange, written: Written, target: str) -> Any:
    """Put what a call for the folder ``target`` wrote on another host there; return its result."""
    for below, name in written.files.items():
        path = Path(target).parent / below
        path.parent.mkdir(parents=True, exist_ok=True)
        exchange.get(name, path)
        exchange.remove(name)
    return written.value
