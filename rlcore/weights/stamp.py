"""Which weights an engine samples from: a version with the digest of the bytes.

Imports nothing heavy. The learner makes stamps, an engine answers with the stamp of what it loaded,
and every recorded row carries the one it was sampled from.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.errors import UserError


class WeightSyncError(UserError):
    """The weights an engine holds are not the weights it was sent."""


@dataclass(frozen=True, slots=True)
class WeightStamp:
    """Which weights: the learner's version and ``digest.state_digest`` of the state."""

    version: int
    digest: str


# What an engine holds until a load is proven: noise after it was built, wrong weights after a load
# that was refused. Nothing is sampled from it.
UNPROVEN = WeightStamp(version=-1, digest="unproven")


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """Weights to load: ``path`` names a safetensors file written by ``files.write_state``.

    The file holds the whole canonical HF state (fp32 or bf16), commonly under /dev/shm.
    ``tensors``: ``digest.tensor_digests`` of the sender's own tensors, which
    ``stamp.digest`` combines.
    """

    stamp: WeightStamp
    path: str
    tensors: Mapping[str, str]
