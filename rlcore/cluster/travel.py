"""How folders and weights reach a worker on another host.

A call keeps its arguments. With them goes what each path in them is a copy of, and the worker gets
a path of its own host; what it wrote comes back once its call has ended:

* A folder of an artifact is fetched from the store into the host's own cache, verified.
* Weights that a rank publishes are read from its memory on its own host (``path``), and on others
  from Ray's object store (``parts``), which fetches them once a host and frees them with the last
  that refers to them.
* What ``WRITTEN`` calls write goes through Ray's object store into the flow's folder.
"""

import fcntl
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from rlcore.cluster.host_settings import socket_folder
from rlcore.cluster.worker_object import Shell
from rlcore.store.cache import origin_of

if TYPE_CHECKING:
    from schemas.artifacts import ArtifactRef

WRITTEN = {"save", "export_hf"}  # methods whose first argument names a folder that they write
PUBLISH, LOAD = "publish", "load_weights"
PART_BYTES = 64 * 2**20
FETCHED = 4  # parts that are fetched at once
NOTHING: Mapping[str, "Stored"] = {}
Parts = tuple[ray.ObjectRef, ...]


def sent(path: str | Path) -> Parts:
    """Return the bytes of a file as objects of Ray, one after another; any process reads them."""
    # A mapped file: Ray copies from it into its own memory, and nothing else holds the bytes.
    data = np.memmap(path, dtype=np.uint8, mode="r") if os.path.getsize(path) else np.empty(0)
    cuts = range(0, len(data), PART_BYTES)
    return tuple(ray.put(np.asarray(data[cut : cut + PART_BYTES])) for cut in cuts)


def receive(parts: Parts, path: Path) -> None:
    """Write the file that ``sent`` took. Raises ObjectLostError where its host is lost."""
    with path.open("wb") as file:
        for start in range(0, len(parts), FETCHED):
            for part in ray.get(list(parts[start : start + FETCHED])):
                file.write(part)


@dataclass(frozen=True, slots=True)
class Written:
    """What a call returned that wrote ``files``: relative path -> bytes."""

    value: Any
    files: dict[str, Parts]


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


class Traveller(Shell):
    """The object of a worker. ``host``: the address where it lies, "" where the run has one host;
    ``elsewhere``: on another than the flow's."""

    def __init__(self, target: str, host: str, *, elsewhere: bool) -> None:
        super().__init__(target)
        self._host, self._elsewhere = host, elsewhere

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
        if folders is None:
            return super().call(method, args, kwargs)
        if method == LOAD:
            return self._load(*args)
        if method in WRITTEN and self._elsewhere:
            return self._write(method, args)
        result = super().call(method, tuple(arrived(each, folders) for each in args), kwargs)
        if method == PUBLISH and result.path:
            return replace(result, host=self._host, parts=sent(result.path))
        return result

    def _load(self, update: Any) -> Any:
        if update.host == self._host or not update.parts:
            return super().call(LOAD, (update,), {})
        memory = Path("/dev/shm")
        folder = memory if memory.is_dir() else Path(tempfile.gettempdir())
        # ``models.weight_files`` removes files of this name once their process has ended.
        path = folder / f"rl-weights-{os.getpid()}-{uuid.uuid4().hex[:8]}.safetensors"
        try:
            receive(update.parts, path)
            return super().call(LOAD, (replace(update, path=str(path)),), {})
        finally:
            path.unlink(missing_ok=True)

    def _write(self, method: str, args: tuple[Any, ...]) -> Written:
        """Call a method of ``WRITTEN`` with a folder of this host; return what it wrote there, and
        beside it."""
        with tempfile.TemporaryDirectory(prefix="rl-pipeline-") as made:
            target = Path(made) / Path(args[0]).name
            value = super().call(method, (str(target), *args[1:]), {})
            found = [path for path in sorted(Path(made).rglob("*")) if path.is_file()]
            return Written(value, {path.relative_to(made).as_posix(): sent(path) for path in found})


def take_home(written: Written, target: str) -> Any:
    """Put what a call for the folder ``target`` wrote on another host there; return its result."""
    for below, parts in written.files.items():
        path = Path(target).parent / below
        path.parent.mkdir(parents=True, exist_ok=True)
        receive(parts, path)
    return written.value
