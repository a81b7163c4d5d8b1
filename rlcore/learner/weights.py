"""Output of a learner's weights: their digest, one file, a Hugging Face directory."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from rlcore.learner.engine import FrozenEngine, TrainEngine
from rlcore.learner.model import write_hf_directory
from rlcore.learner.spec import LearnerSpec
from rlcore.models.names import to_files
from rlcore.weights.digest import combined_digest, digests_and_sums
from rlcore.weights.shared import SharedState


@dataclass(frozen=True, slots=True)
class _Known:
    digests: dict[str, str]
    sums: dict[str, str]


class LearnerWeights:
    """The weights of one rank's engine, in file names (``rlcore.models.names``). Every method is
    collective."""

    def __init__(self, engine: TrainEngine | FrozenEngine, spec: LearnerSpec, rank: int) -> None:
        self._engine, self._spec, self._rank = engine, spec, rank
        self._known: _Known | None = None
        self._shared = SharedState()
        self._copies: dict[str, torch.Tensor] = {}  # on the host, of weights that are on a GPU

    def changed(self) -> None:
        """Forget the digests."""
        self._known = None

    def digest(self) -> str:
        """Return the digest of the whole state, on every rank. Hashes once per change."""
        known = self._known or self._hashed(self._on_first_rank())
        return combined_digest(known.digests)

    def share(self) -> tuple[str, dict[str, str], dict[str, str]]:
        """Write the state where other processes read it; return the path of that file (rank 0;
        "" on others), the digest and the sum of each tensor."""
        state = self._on_first_rank()
        with ThreadPoolExecutor(1) as beside:
            writing = beside.submit(self._shared.write, state) if self._rank == 0 else None
            known = self._known or self._hashed(state)
            path = "" if writing is None else writing.result()
        return path, known.digests, known.sums

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
        """The whole state in file names on CPU on rank 0; other ranks take part and keep nothing.

        The ranks of a frozen learner are independent: each keeps its own copy.
        """
        gathered = self._spec.zero_stage == 3 and self._spec.trainable
        state: dict[str, torch.Tensor] = {}
        for name, tensor in self._engine.state():
            if self._rank == 0 or not self._spec.trainable:
                state[name] = self._on_host(name, tensor, gathered)
        return to_files(self._engine.lm, state)

    def _on_host(self, name: str, tensor: torch.Tensor, gathered: bool) -> torch.Tensor:
        """Return ``tensor`` in the host's memory: itself, or a copy where it is on a GPU or will
        be released. What is trained is copied again and again, over the last copy: the system takes
        longer to provide new memory than a GPU to fill it."""
        if tensor.is_cuda and self._spec.trainable:
            if name not in self._copies:
                self._copies[name] = torch.empty_like(tensor, device="cpu")
            return self._copies[name].copy_(tensor)
        return tensor.cpu().clone() if gathered else tensor.cpu()

    def _hashed(self, state: dict[str, torch.Tensor]) -> "_Known":
        """The digests and sums of rank 0's tensors, on every rank."""
        own = _Known(*digests_and_sums(state.items()))
        known: _Known = self._engine.exchange(own)[0]
        self._known = known
        return known
