"""Which weights an engine samples from: a version with the digest of the bytes.

Imports nothing heavy. The learner makes stamps, an engine returns the stamp of the weights that it
loaded, and every recorded row has the stamp of the weights that it was sampled from.
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


# The stamp of an engine before a verified load: it holds noise after it was built, and wrong
# weights after a refused load. It does not sample.
UNVERIFIED = WeightStamp(version=-1, digest="unproven")


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """Weights to load: ``path`` names a safetensors file, which the sender writes over later.

    The file holds the whole canonical HF state (fp32 or bf16), commonly in memory.
    ``tensors``: ``digest.tensor_digests`` of the sender's own tensors, which
    ``stamp.digest`` combines; ``sums``: their ``digest.tensor_sums``, which are faster to compare.
    """

    stamp: WeightStamp
    path: str
    tensors: Mapping[str, str]
    sums: Mapping[str, str]
