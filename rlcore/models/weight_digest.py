"""The content digest of a model's weights, and the stamp: a version of them with its digest.

The learner makes stamps, an engine returns that of the weights it loaded, and every recorded row
has that of the weights it was sampled from. The state is the **canonical HF state**: every tensor
of ``model.state_dict()`` once, a shared one under the first of its names (``canonical_names``), so
without a tied ``lm_head.weight``; in files and on the way in file names (``weight_names``).
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.errors import UserError

if TYPE_CHECKING:
    import torch


class WeightSyncError(UserError):
    """The weights an engine holds are not the weights it was sent."""


@dataclass(frozen=True, slots=True)
class WeightStamp:
    """Which weights: the learner's version and ``state_digest`` of the state."""

    version: int
    digest: str


# The stamp of an engine before a verified load: it holds noise after it was built, and wrong
# weights after a refused load. It does not sample.
UNVERIFIED = WeightStamp(version=-1, digest="unproven")


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """Weights to load: ``path`` names a safetensors file, which the sender writes over later.

    The file holds the whole canonical HF state (fp32 or bf16), commonly in memory.
    ``tensors``: ``tensor_digests`` of the sender's own tensors, which ``stamp.digest`` combines.
    In a run on several hosts ``host`` is where ``path`` is read, and ``parts`` are its bytes for
    the others (``cluster.travel.sent``).
    """

    stamp: WeightStamp
    path: str
    tensors: Mapping[str, str]
    host: str = ""
    parts: tuple[Any, ...] = ()


CHUNK_BYTES = 16 * 2**20  # leaf of the hash tree, so that one big embedding is hashed on all cores


class DigestTap:
    """Hashes the tensors of a state on their way from ``items`` to the consumer.

    Each tensor is hashed before it is yielded, so the digests are of the bytes that the consumer
    got; the chunks of a large one on all cores (hashlib releases the GIL). A contiguous CPU tensor
    is read once and not copied.
    """

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}

    def through(
        self, items: "Iterable[tuple[str, torch.Tensor]]"
    ) -> "Iterator[tuple[str, torch.Tensor]]":
        """Yield ``items``; ``digests`` then has those of the consumed tensors.

        Raises ``UserError`` when a name comes twice.
        """
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for name, tensor in items:
                if name in self.digests:
                    raise UserError(
                        f"state holds '{name}' twice; pass each tensor once, under its canonical"
                        " name"
                    )
                held = raw_bytes(tensor)
                chunks = (held[at : at + CHUNK_BYTES] for at in range(0, len(held), CHUNK_BYTES))
                leaves = [*pool.map(lambda chunk: hashlib.sha256(chunk).hexdigest(), chunks)]
                line = [name, str(tensor.dtype), list(tensor.shape), leaves]
                self.digests[name] = json.dumps(line)
                yield name, tensor


def tensor_digests(items: "Iterable[tuple[str, torch.Tensor]]") -> dict[str, str]:
    """Return name -> digest of each tensor: the JSON of ``[name, dtype, shape, [sha256 of each
    16 MiB of its bytes]]``.

    Independent of strides, device and file layout. Raises ``UserError`` when a name comes twice.
    """
    tap = DigestTap()
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


def state_digest(items: "Iterable[tuple[str, torch.Tensor]]") -> str:
    """Return the hex sha256 of a state: ``combined_digest`` of its ``tensor_digests``.

    Independent of iteration order; a different dtype is a different digest. Raises ``UserError``
    when a name comes twice.
    """
    return combined_digest(tensor_digests(items))


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


def raw_bytes(tensor: "torch.Tensor") -> memoryview:
    """Return the tensor's bytes in C order; no copy for a contiguous CPU tensor."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
