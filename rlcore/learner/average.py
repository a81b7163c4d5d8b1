"""An exponential moving average of the trained weights, which may be held in their place
(InstructGPT, arXiv 2203.02155 App. C.4)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from rlcore.learner.canonical import read_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class WeightAverage:
    """mean <- decay x mean + (1 - decay) x weights after each optimizer step, in fp32, from the
    weights that ``lm`` has now; of its trained parameters, which must be whole (no ZeRO 3)."""

    def __init__(self, lm: "PreTrainedModel", decay: float) -> None:
        self._decay = decay
        self._weights = {name: p for name, p in lm.named_parameters() if p.requires_grad}
        self._mean: Mapping[str, torch.Tensor] = {}
        self._raw: Mapping[str, torch.Tensor] | None = None  # while the mean is in their place
        self._begin()

    def _begin(self) -> None:
        self._mean = {n: p.detach().float().clone() for n, p in self._weights.items()}

    @property
    def is_held(self) -> bool:
        """Whether the model has the mean in place of its weights."""
        return self._raw is not None

    @torch.no_grad()
    def add(self) -> None:
        """Take the weights after a step into the mean."""
        assert not self.is_held, "the mean is no weights"
        for name, weight in self._weights.items():
            self._mean[name].lerp_(weight.float(), 1.0 - self._decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Put the mean, in the dtype of the weights, in their place; or the weights again, bit for
        bit."""
        raw, self._raw = self._raw, None
        if raw is None:
            self._raw = {name: weight.clone() for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            weight.copy_((self._mean if raw is None else raw)[name])

    def save(self, file: Path) -> None:
        """Write the mean."""
        save_file({name: mean.cpu().contiguous() for name, mean in self._mean.items()}, file)

    @torch.no_grad()
    def load(self, file: Path) -> None:
        """Continue with the mean that ``save`` wrote; where there is none, as after steps that took
        none, begin at the weights."""
        if not file.exists():
            self._begin()
            return
        for name, saved in read_tensors(file).items():
            self._mean[name].copy_(saved)
