"""Compiles the loops where it is imported, by a process that has still to wait: where there is a
GPU, no loop is computed, and nothing is compiled."""

import torch

from rlcore.kernels.parallel import serves

if not torch.cuda.is_available() and serves(torch.zeros(1)):
    from rlcore.kernels import documents, loops  # noqa: F401 - imported for what that does
