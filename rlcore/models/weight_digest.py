"""The content digest of a model's weights, the sums that prove their way to an engine, and the
stamp: a version of the weights with its digest.

Imports nothing heavy. The learner makes stamps, an engine returns the stamp of the weights that it
loaded, and every recorded row has the stamp of the weights that it was sampled from.

The digest (sha256) names weights in records, and nobody can make others of the same name. The sums
(xxh3 of 128 bits) are ten times faster to compute, and tell an engine that what its loader got is
what the learner sent: no accident, a torn or a stale file among them, leaves them all as they were.

The state is the **canonical HF state**: every tensor of
``model.state_dict()`` once, a shared tensor under the first of its names (``canonical_names``); a
tied ``lm_head.weight`` is therefore absent, as in a checkpoint written by ``save_pretrained``.
Wherever tensors are sent, stored or hashed they have the names of that (``weight_names``).
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from schemas.errors import UserError

if TYPE_CHECKING:
    import torch


class WeightSyncError(UserError):
    """The weights an engine holds are not the weights it was sent."""


@dataclass(frozen=True, slots=True)
class WeightStamp:
    """Which weights: the learner's version and ``digest.state_digest`` of the state."""

    version: int
    digest: str


# The stamp of an engine before a verified load: it holds noise after it was built, and wrong
# weights after a refused load. It does not sample.
UNVERIFIED = WeightStamp(version=-1, digest="unproven")


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """Weights to load: ``path`` names a safetensors file, which the sender writes over later.

    The file holds the whole canonical HF state (fp32 or bf16), commonly in memory.
    ``tensors``: ``digest.tensor_digests`` of the sender's own tensors, which
    ``stamp.digest`` combines; ``sums``: their ``digest.tensor_sums``, which are faster to compare.
    In a run on several hosts ``host`` is where ``path`` is read, and ``name`` that of a copy in the
    run's exchange (``cluster.travel``) for the others.
    """

    stamp: WeightStamp
    path: str
    tensors: Mapping[str, str]
    sums: Mapping[str, str]
    host: str = ""
    name: str = ""


CHUNK_BYTES = 16 * 2**20  # leaf of the hash tree, so that one big embedding is hashed on all cores
CACHED_BYTES = 2**18  # stay in a core's own cache between two hashes
HASHED_AHEAD = 8  # tensors hashed ahead while the consumer works on another
SMALL_BYTES = 2**18  # hashed in less time than it takes to hand it to a thread


def _sha256(chunk: memoryview) -> str:
    return hashlib.sha256(chunk).hexdigest()


class DigestTap:
    """Hashes the tensors of a state on their way from ``items`` to the consumer.

    Each tensor is hashed before it is yielded, so the digests are of the bytes that the consumer
    got. A few tensors are hashed ahead, the large ones on ``threads`` threads (0: one per core;
    hashlib releases the GIL). A contiguous CPU tensor is read once and not copied.
    """

    _hash = staticmethod(_sha256)

    def __init__(self, *, threads: int = 0) -> None:
        self._threads = threads or len(os.sched_getaffinity(0))
        self.digests: dict[str, str] = {}

    def through(
        self, items: "Iterable[tuple[str, torch.Tensor]]"
    ) -> "Iterator[tuple[str, torch.Tensor]]":
        """Yield ``items``; ``digests`` then has those of the consumed tensors.

        Raises ``UserError`` when a name comes twice.
        """
        ahead: deque[tuple[str, torch.Tensor, list[str | Future[str]]]] = deque()
        with ThreadPoolExecutor(self._threads) as pool:
            for name, tensor in items:
                if name in self.digests or any(name == waiting for waiting, _, _ in ahead):
                    raise UserError(
                        f"state holds '{name}' twice; pass each tensor once, under its canonical"
                        " name"
                    )
                ahead.append((name, tensor, self._leaves(_raw_bytes(tensor), pool)))
                if len(ahead) > HASHED_AHEAD:
                    yield self._hashed(*ahead.popleft())
            while ahead:
                yield self._hashed(*ahead.popleft())

    def _leaves(self, buffer: memoryview, pool: ThreadPoolExecutor) -> list[str | Future[str]]:
        if 0 < len(buffer) <= SMALL_BYTES:
            return [self._hash(buffer)]
        return [
            pool.submit(self._hash, buffer[start : start + CHUNK_BYTES])
            for start in range(0, len(buffer), CHUNK_BYTES)
        ]

    def _hashed(
        self, name: str, tensor: "torch.Tensor", leaves: "list[str | Future[str]]"
    ) -> "tuple[str, torch.Tensor]":
        found = [leaf if isinstance(leaf, str) else leaf.result() for leaf in leaves]
        self._record(name, tensor, found)
        return name, tensor

    def _record(self, name: str, tensor: "torch.Tensor", leaves: list[str]) -> None:
        self.digests[name] = _line(name, tensor, leaves)


class SumTap(DigestTap):
    """The same with the sums of ``tensor_sums``."""

    _hash = staticmethod(xxhash.xxh3_128_hexdigest)


def _both(chunk: memoryview) -> str:
    """The sha256 and the xxh3 of ``chunk``, a blank between them.

    Piece by piece, xxh3 first: it waits less for memory, and sha256 then reads the core's cache.
    """
    digest, total = hashlib.sha256(), xxhash.xxh3_128()
    for start in range(0, len(chunk), CACHED_BYTES):
        piece = chunk[start : start + CACHED_BYTES]
        total.update(piece)
        digest.update(piece)
    return f"{digest.hexdigest()} {total.hexdigest()}"


class _BothTap(DigestTap):
    """The same with both; the sums are in ``sums``."""

    _hash = staticmethod(_both)

    def __init__(self, *, threads: int) -> None:
        super().__init__(threads=threads)
        self.sums: dict[str, str] = {}

    def _record(self, name: str, tensor: "torch.Tensor", leaves: list[str]) -> None:
        pairs = [leaf.split() for leaf in leaves]
        self.digests[name] = _line(name, tensor, [digest for digest, _ in pairs])
        self.sums[name] = _line(name, tensor, [total for _, total in pairs])


def digests_and_sums(
    items: "Iterable[tuple[str, torch.Tensor]]", *, threads: int = 0
) -> tuple[dict[str, str], dict[str, str]]:
    """Return ``tensor_digests`` and ``tensor_sums`` of ``items``, in one pass over the memory."""
    tap = _BothTap(threads=threads)
    for _ in tap.through(items):
        pass
    return tap.digests, tap.sums


def tensor_sums(items: "Iterable[tuple[str, torch.Tensor]]", *, threads: int = 0) -> dict[str, str]:
    """Return name -> sum of each tensor: ``tensor_digests`` with xxh3 in place of sha256."""
    tap = SumTap(threads=threads)
    for _ in tap.through(items):
        pass
    return tap.digests


def tensor_digests(
    items: "Iterable[tuple[str, torch.Tensor]]", *, threads: int = 0
) -> dict[str, str]:
    """Return name -> digest of each tensor: the JSON of ``[name, dtype, shape, [sha256 of each
    16 MiB of its bytes]]``.

    Independent of strides, device and file layout. Raises ``UserError`` when a name comes twice.
    """
    tap = DigestTap(threads=threads)
    for _ in tap.through(items):
        pass
    return tap.digests


def combined_digest(digests: Mapping[str, str]) -> str:
    """Return the hex sha256 over the lines of ``tensor_digests``, sorted by name."""
    total = hashlib.sha256()
    for name in sorted(digests):
        total.update(digests[name].encode() + b"\n")
    return total.hexdigest()


def tensor_identity(digest: str) -> str:
    """Return the hex sha256 of one of ``tensor_digests``: short, however large the tensor."""
    return hashlib.sha256(digest.encode()).hexdigest()


def state_digest(items: "Iterable[tuple[str, torch.Tensor]]", *, threads: int = 0) -> str:
    """Return the hex sha256 of a state: ``combined_digest`` of its ``tensor_digests``.

    Independent of iteration order; a different dtype is a different digest. Raises ``UserError``
    when a name comes twice.
    """
    return combined_digest(tensor_digests(items, threads=threads))


def canonical_names(model: "torch.nn.Module") -> list[str]:
    """Return the names of ``model.state_dict()``, a shared tensor under its first name only.

    Sharing is determined by identity of the parameter object, so the names are right under ZeRO-3
    too, where every parameter is an empty placeholder.
    """
    seen: set[int] = set()
    names = []
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            names.append(name)
    return names


def _line(name: str, tensor: "torch.Tensor", leaves: list[str]) -> str:
    return json.dumps([name, str(tensor.dtype), list(tensor.shape), leaves])


def _raw_bytes(tensor: "torch.Tensor") -> memoryview:
    """Return the tensor's bytes in C order; no copy for a contiguous CPU tensor."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
