"""generation_config.json: how a model is sampled where nobody says otherwise."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import UserError

if TYPE_CHECKING:
    from transformers import GenerationConfig

GENERATION = "generation_config.json"
# Of sampling alone, with the values that change nothing.
_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "typical_p": 1.0}
_SAMPLING |= {"min_p": None, "top_h": None, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}


def read_generation(directory: Path) -> dict[str, Any]:
    """Return the generation_config.json of ``directory``, {} where there is none. Raises UserError
    where it holds no JSON object."""
    file = directory / GENERATION
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}; fetch or save the model again") from error
    if not isinstance(values, dict):
        raise UserError(f"{file} holds no JSON object; fetch or save the model again")
    return values


def check_generation(directory: Path) -> None:
    """Raise UserError where transformers refuses the generation_config.json of ``directory``, and
    with it the model: at the start of the first learner otherwise."""
    if not read_generation(directory):
        return
    # The command line imports this module, and waits for transformers only where it is asked.
    from transformers import GenerationConfig

    try:
        GenerationConfig.from_pretrained(directory)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{directory / GENERATION} cannot be used: {first_line}; correct it, or remove the file"
        ) from error


def settle_sampling(config: "GenerationConfig") -> None:
    """Let ``do_sample`` agree with the rest of ``config``: as transformers writes no other.

    Where it is left out beside a temperature, top_p or the like (Llama 2, Vicuna), sampling is what
    was meant; where it is false, what would not be read goes.
    """
    set_ones = [
        name
        for name, neutral in _SAMPLING.items()
        if getattr(config, name, None) not in (None, neutral)
    ]
    if set_ones and config.do_sample is None:
        config.do_sample = True
    if config.do_sample is False:
        for name in set_ones:
            setattr(config, name, None)
