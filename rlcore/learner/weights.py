"""Output of a learner's weights: their digest, one file, a Hugging Face directory."""

from pathlib import Path

import torch

from rlcore.learner.engine import FrozenEngine, TrainEngine
from rlcore.learner.model import write_hf_directory
from rlcore.learner.spec import LearnerSpec
from rlcore.weights.digest import combined_digest, tensor_digests
from rlcore.weights.files import write_state


class LearnerWeights:
    """The canonical HF state of one rank's engine. Every method is collective."""

    def __init__(self, engine: TrainEngine | FrozenEngine, spec: LearnerSpec, rank: int) -> None:
        self._engine, self._spec, self._rank = engine, spec, rank
        self._digests: dict[str, str] | None = None

    def changed(self) -> None:
        """Forget the digests."""
        self._digests = None

    def digest(self) -> str:
        """Return the digest of the whole state, on every rank. Hashes once per change."""
        return combined_digest(self._digests or self._hashed(self._on_first_rank()))

    def write(self, path: str | Path) -> dict[str, str]:
        """Write the state to the safetensors file ``path`` (rank 0; atomic); return the digest of
        each tensor."""
        state = self._on_first_rank()
        digests = self._digests or self._hashed(state)
        if self._rank == 0:
            write_state(path, state)
        return digests

    def export(self, directory: Path, *, architecture: str) -> None:
        """Write a Hugging Face directory (rank 0) of the model class ``architecture``."""
        state = self._on_first_rank()
        if self._rank == 0:
            write_hf_directory(
                directory,
                source=Path(self._spec.model_dir),
                state=state,
                dtype=self._spec.dtype,
                architecture=architecture,
            )

    def _on_first_rank(self) -> dict[str, torch.Tensor]:
        """The whole canonical state on CPU on rank 0; other ranks take part and keep nothing.

        The ranks of a frozen learner are independent: each keeps its own copy.
        """
        gathered = self._spec.zero_stage == 3 and self._spec.trainable
        state: dict[str, torch.Tensor] = {}
        for name, tensor in self._engine.state():
            if self._rank == 0 or not self._spec.trainable:
                state[name] = tensor.cpu().clone() if gathered else tensor.cpu()
        return state

    def _hashed(self, state: dict[str, torch.Tensor]) -> dict[str, str]:
        """The digests of rank 0's tensors, on every rank."""
        digests: dict[str, str] = self._engine.exchange(tensor_digests(state.items()))[0]
        self._digests = digests
        return digests
