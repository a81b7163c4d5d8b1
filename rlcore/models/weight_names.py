"""The names of a model's weights: in files and at engines, and in memory.

transformers renames, fuses and splits weights when it loads a file (``embed_out`` of GPT-NeoX, the
experts of Mixtral). **File names** are those that ``save_pretrained`` writes for a class, the hub's
and those that vLLM takes: base models, updates of engines, exports and digests have them. Only
learners' checkpoints, which hold optimizer state, have the names in memory.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.models.files import INDEX_FILE, read_config
from rlcore.models.weight_digest import canonical_names
from rlcore.models.weight_files import checkpoint_shapes
from schemas.errors import UserError

# Masks that older code kept among the weights; transformers lists them for some classes only.
CONSTANTS = re.compile(r"(attn|attention)\.(bias|masked_bias)$")

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def to_files(
    lm: "PreTrainedModel", state: "Mapping[str, torch.Tensor]"
) -> "dict[str, torch.Tensor]":
    """Return ``state``, a canonical state in the names of ``lm`` in memory, in file names.

    It depends on the class alone, not on how the files were named that ``lm`` was loaded from.
    """
    from transformers.core_model_loading import revert_weight_conversion

    loaded = lm.__dict__.pop("_weight_conversions", None)  # of the files it came from
    try:
        return revert_weight_conversion(lm, dict(state))
    finally:
        if loaded is not None:
            lm._weight_conversions = loaded


def file_state(lm: "PreTrainedModel") -> "dict[str, torch.Tensor]":
    """Return the weights of ``lm`` as ``save_pretrained`` does: file names, shared ones once."""
    held = lm.state_dict()
    return to_files(lm, {name: held[name] for name in canonical_names(lm)})


def from_files(
    lm: "PreTrainedModel", state: "Mapping[str, torch.Tensor]"
) -> "dict[str, torch.Tensor]":
    """Return ``state``, of file names, in the names of ``lm`` in memory."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    if not get_model_conversion_mapping(lm, add_legacy=False):
        return dict(state)
    loaded = type(lm).from_pretrained(
        None, config=deepcopy(lm.config), state_dict=dict(state), dtype=lm.dtype
    )
    held = loaded.state_dict()
    return {name: held[name] for name in canonical_names(lm)}


def empty_model(directory: Path, *, where: str = "", scores: bool = False) -> "PreTrainedModel":
    """Return the causal language model of a directory's config.json, without memory for weights;
    where it ``scores``, that for sequence classification with one label.

    Classes are transformers' own: no learner runs code of a model. ``where``: key and value of the
    recipe that name it, by default ``model.path``. Raises ``UserError`` naming the kind of model
    that the installed transformers has no such model for.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    made = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    labels = {"num_labels": 1} if scores else {}
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, **labels)
        with torch.device("meta"):
            return made.from_config(config, trust_remote_code=False)
    except Exception as error:  # untrusted files, whatever code reads them
        found, where = read_config(directory), where or f"model.path = '{directory}'"
        kind = found.get("architectures") or found.get("model_type")
        what = "model for sequence classification" if scores else "causal language model"
        raise UserError(
            f"{where} is of {kind}, and transformers makes no {what} of its config.json"
            f" ({_first_line(error)}); give one that {made.__name__} loads without code of its own"
        ) from error


def file_shapes(lm: "PreTrainedModel") -> dict[str, tuple[int, ...]]:
    """Return file name -> shape of the weights of ``lm``, which may be an ``empty_model``."""
    return {name: tuple(tensor.shape) for name, tensor in file_state(lm).items()}


def has_file_names(directory: Path) -> bool:
    """Return whether the weights of ``directory`` have the file names of its class, all of them and
    no others.

    Otherwise transformers may still load them: it knows older names, and which tensors of older
    files are of no use. Headers are read only. Raises ``UserError`` as ``empty_model``, and where
    the files lack a weight, which would be drawn at random, hold one of another shape, or one that
    the class does not have.
    """
    lm = empty_model(directory)
    held = checkpoint_shapes(directory)
    if held == file_shapes(lm):
        return True
    check_loading(lm, held, f"model.path = '{directory}'")
    return False


def check_loading(lm: "PreTrainedModel", held: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raise ``UserError`` where files that hold tensors of the shapes ``held`` are not all that
    ``lm``, an ``empty_model``, is made of; ``where``: key and value of the recipe that name it."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # of weights that are not there
    zero = torch.zeros(())  # seen in any shape it takes no memory
    state = {name: zero.expand(shape) for name, shape in held.items()}
    try:
        loaded: Any = type(lm).from_pretrained(
            None,
            config=lm.config,
            state_dict=state,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # untrusted files, whatever code reads them
        raise UserError(
            f"{where} cannot be loaded: {_first_line(error)}; fetch or save the model again"
        ) from error
    problems = {
        "missing_keys": "lacks {}, which would be drawn at random",
        "mismatched_keys": "holds {} in other shapes than config.json has",
        "unexpected_keys": "holds {}, which {} does not have",
    }
    for key, problem in problems.items():
        names = sorted(each if isinstance(each, str) else each[0] for each in loaded[1][key])
        if key == "unexpected_keys":
            names = [name for name in names if not CONSTANTS.search(name)]
        if names:
            several = f"{len(names)} tensors, first '{names[0]}'" if names[1:] else f"'{names[0]}'"
            raise UserError(
                f"{where} {problem.format(several, type(lm).__name__)}; fetch or save the model"
                " again, with the config.json of its weights"
            )


def write_file_names(source: Path, target: Path) -> None:
    """Write the weights of ``source`` in the file names of its class as ``target``'s only ones.

    In the dtype of ``source``, as transformers reads it.
    """
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(source, dtype="auto", trust_remote_code=False)
    for file in [*target.glob("*.safetensors"), target / INDEX_FILE]:
        file.unlink(missing_ok=True)
    state = {name: tensor.contiguous() for name, tensor in file_state(lm).items()}
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
