"""Whether a model of an architecture that nobody has taken through the pipeline can be trained:
tried on its own weights when a run starts."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from rlcore.learner.model import load_model, write_hf_directory
from rlcore.learner.packing_check import check_packing, outputs_alone
from rlcore.learner.spec import LearnerSpec
from rlcore.models.architectures import LISTED
from rlcore.models.names import empty_model, file_state, from_files
from rlcore.models.softcap import EAGER, SDPA
from schemas.errors import UserError

SAME = 1e-5  # nats: the same weights in the same passes


def try_architecture(directory: Path) -> None:
    """Load the model of ``directory``, write it as the learner does, load that, and compare their
    log-probs, in float32 on CPU; nothing for a class that is listed.

    Raises ``UserError`` naming the class: where its logits or its attention are not those of a
    causal language model (``load_model``, ``check_packing``), or it is another model once written.
    """
    kind = type(empty_model(directory))
    name = kind.__name__
    if name in LISTED:
        return
    attention = SDPA if kind._supports_sdpa else EAGER
    with torch.random.fork_rng(devices=[]), TemporaryDirectory(prefix="rl-trial-") as folder:
        spec = LearnerSpec(str(directory), trainable=False, attn_implementation=attention)
        model = load_model(spec, "cpu")
        check_packing(model, spec, "cpu")
        before, state = outputs_alone(model, "cpu"), file_state(model.lm)
        held = model.lm.state_dict()
        same = all(torch.equal(held[n], t) for n, t in from_files(model.lm, state).items())
        write_hf_directory(
            Path(folder), source=directory, state=state, dtype=spec.dtype, architecture=name
        )
        again = load_model(replace(spec, model_dir=folder), "cpu")
        moved = float(np.abs(outputs_alone(again, "cpu") - before).max())
    if not (same and moved <= SAME):
        raise UserError(
            f"model.path = '{directory}' is a {name}, which once written and loaded again gives"
            f" other log-probs (by {moved:.2g} nats), so its checkpoints and exports would be"
            " another model; use an architecture of docs/architectures.md"
        )
