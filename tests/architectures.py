"""Takes one small model of each architecture through the whole pipeline; prints a table.

    python -m tests.architectures [CLASS ...] [--write]

Each is drawn at random, written by ``save_pretrained``, trained (SFT and RL), evaluated and
exported by ``rl-pipeline run``; every iteration syncs its weights to the transformers engine, or to
vLLM's where the class is a hybrid, and the export is loaded into vLLM's by the same route.
``--write``: the table into ``docs/reference/architectures.md``. Exit code 1 if one fails.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from flows.paths import ROOT
from rlcore.engines.types import EngineSpec
from rlcore.engines.vllm_engine import engine_env
from rlcore.learner.packing_check import LISTED
from rlcore.models.weight_digest import WeightStamp, WeightUpdate, combined_digest, tensor_digests
from rlcore.models.weight_files import (
    checkpoint_shapes,
    exchange_file,
    read_checkpoint,
    write_state,
)
from tests.flows.small_run import INLINE, SMALL, run_recipe, summary_of
from tests.rlcore.engines.conftest import EngineProcess

DOCUMENT = ROOT / "docs" / "reference" / "architectures.md"

CONTEXT = 128
TIMEOUT_S = 900.0  # of a call of vLLM
NEAR = 2e-3  # nats between engines, float32
HEAD = """# Architectures

`make architectures` takes one small model of each class through the whole pipeline and writes this
table: random weights, as `save_pretrained` writes them, SFT, RL with a sync to the engine that
samples each iteration, evaluation, export. The export has the names of `save_pretrained`, loads in
plain transformers, and is sent to a vLLM engine on the CPU, whose log-probs are compared with
transformers'.

"""
TAIL = """
*Rows*: where documents that share a row would move each other (a state or a convolution continues
across the boundary), each row holds one document; log-probs and gradients are then those of each
document alone, as they are where rows are packed. *Nats*: the largest gap between the log-probs of
sampler and learner. Hybrids, whose layers keep states besides keys and values, are sampled by vLLM
alone; a recipe that would sample them by the `transformers` engine is refused.

Weights have one set of names everywhere: those that `save_pretrained` writes for the class
(`models/weight_names.py`). A base model under older names, or with buffers of no use, is written
under these; one that lacks a weight or holds one that its class does not have is refused by the dry
run. Scaling and soft-capping of logits (Granite, Cohere, Falcon-H1, Gemma 2) are applied wherever
log-probs are computed, and a class that caps the scores of its attention (Gemma 2) is computed by
transformers' `eager` attention, as sdpa would leave the cap out.

A local model of another class is tried when a run is planned or starts: loaded, written, loaded
again, its log-probs compared. It is refused by its class where they differ, where its logits are
not those of its head, scaled or capped, or where tokens depend on later ones. Models that bring
their own code are trained by the classes of transformers or not at all.
"""
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,  # the least that vLLM's attention on CPU knows
    "intermediate_size": 96,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
DELTA_NET = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MAMBA = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16}
# Class -> settings beside SHAPE; what is special about it is switched on.
SETTINGS: dict[str, dict[str, Any]] = {
    "Qwen2ForCausalLM": {"tie_word_embeddings": True},
    "Qwen3MoeForCausalLM": {**EXPERTS, "num_experts": 4},
    "MistralForCausalLM": {"sliding_window": 16},
    "MixtralForCausalLM": {**EXPERTS, "num_local_experts": 4, "sliding_window": None},
    "Gemma2ForCausalLM": {"sliding_window": 16, "tie_word_embeddings": True},
    "Gemma3ForCausalLM": {"sliding_window": 16, "tie_word_embeddings": True},
    "Phi3ForCausalLM": {"sliding_window": None},
    "GPTNeoXForCausalLM": {"num_key_value_heads": 2},  # as it has no shared ones, and no key
    "GPT2LMHeadModel": {
        "n_positions": CONTEXT,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "GraniteForCausalLM": {
        "logits_scaling": 4.0,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
    },
    "SmolLM3ForCausalLM": {"no_rope_layers": [1, 0]},
    "Qwen3NextForCausalLM": {**DELTA_NET, **EXPERTS, "num_experts": 4},
    "FalconH1ForCausalLM": {**MAMBA, "mamba_n_groups": 1, "lm_head_multiplier": 0.5},
    "Lfm2ForCausalLM": {
        "num_hidden_layers": 4,
        "full_attn_idxs": [2],
        # As in the files of the hub; vLLM reads them, and transformers only keeps them.
        "block_dim": 64,
        "conv_dim": 64,
    },
}
# Their layers keep states besides keys and values, which the transformers engine cannot continue.
HYBRIDS = ("Qwen3NextForCausalLM", "FalconH1ForCausalLM", "Lfm2ForCausalLM")
CONFIGS = {"Gemma3ForCausalLM": "Gemma3TextConfig", "GPT2LMHeadModel": "GPT2Config"}


@dataclass
class Row:
    """What became of one architecture; ``vllm`` and ``problem`` are empty where all is well."""

    architecture: str
    parameters: int = 0
    packed: bool = True
    gap: float | None = None
    vllm: str = ""
    problem: str = ""


def write_model(directory: Path, architecture: str) -> int:
    """Write a model of random weights and a tokenizer of this project; return its parameters."""
    import torch
    import transformers

    from rlcore.data.read import training_texts
    from rlcore.models.tokenizer import EOS, PAD, train_tokenizer
    from rlcore.recipes.load import load_recipe

    recipe = load_recipe("quickstart", directory=ROOT / "flows" / "recipes")
    texts = training_texts(recipe.data, 0, None)
    tokenizer = train_tokenizer([text for text, _ in zip(texts, range(2000), strict=False)], 300)
    tokenizer.model_max_length = CONTEXT
    known = tokenizer.get_vocab()
    tokens = {"vocab_size": len(known), "eos_token_id": known[EOS], "pad_token_id": known[PAD]}
    name = CONFIGS.get(architecture, architecture.replace("ForCausalLM", "Config"))
    settings = {**SHAPE, "bos_token_id": None, **tokens, **SETTINGS.get(architecture, {})}
    torch.manual_seed(7)
    model = getattr(transformers, architecture)(getattr(transformers, name)(**settings))
    for parameter in model.parameters():  # from scratch, logits are almost 0 and hide errors
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return model.num_parameters()


def engine_of(architecture: str) -> str:
    return "vllm" if architecture in HYBRIDS else "transformers"


def overrides(directory: Path, engine: str) -> dict[str, Any]:
    """Return what makes the quickstart a short run of the model of ``directory``."""
    small = {key: value for key, value in SMALL.items() if "from_scratch" not in key}
    hardware = {"hardware.cluster": "ray", "hardware.rollout.engine": engine}
    return {
        **small,
        **INLINE,
        **(hardware if engine == "vllm" else {}),
        "model.path": str(directory),
        "model.from_scratch": None,
        "model.max_tokens": CONTEXT,
        "sft.max_steps": 4,
        "rl.iterations": 2,
        "rl.validation.prompts": 4,
    }


STARTS = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"


def take(row: Row, folder: Path) -> Path | None:
    """Run the pipeline on ``row``'s architecture; return the export's directory."""
    row.parameters = write_model(folder / "base", row.architecture)
    given = overrides(folder / "base", engine_of(row.architecture))
    ended = run_recipe(folder, ["", "quickstart", json.dumps(given)])
    row.packed = "each row holds one document" not in ended.stdout
    if ended.returncode:
        said = re.findall(r"^[\w.]*Error: (.+)$", ended.stdout, re.MULTILINE)
        row.problem = said[-1].replace(str(folder), "...") if said else ended.stdout[-2000:]
        return None
    summary = summary_of(folder)
    row.gap, export = summary["max_logprob_gap"], Path(summary["export"])
    if checkpoint_shapes(export) != checkpoint_shapes(folder / "base"):
        row.problem = "the export has other names than save_pretrained wrote"
    elif missing := _loads_plainly(export):
        row.problem = f"plain transformers misses {missing}"
    return export


def _loads_plainly(export: Path) -> str:
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(export, output_loading_info=True)
    return ", ".join(str(each) for found in loaded[1].values() for each in found)


class Vllm:
    """One process for the engines of all; vLLM takes long to import."""

    def __init__(self) -> None:
        self._process: EngineProcess | None = None

    def check(self, row: Row, base: Path, export: Path) -> str:
        """Build an engine of ``base``, send it ``export``'s weights; return "yes", or why not."""
        spec = EngineSpec(str(base), max_model_len=CONTEXT, max_num_seqs=4)
        if self._process is None:
            self._process = EngineProcess(engine_env(spec), timeout_s=TIMEOUT_S)
        try:
            self._process.call(row.architecture, "build", spec)
            state = read_checkpoint(export)
            tensors = tensor_digests(state.items())
            stamp = WeightStamp(1, combined_digest(tensors))
            with exchange_file() as path:
                write_state(path, state)
                update = WeightUpdate(stamp, str(path), tensors)
                self._process.call(row.architecture, "load_weights", update)
            ids = [[(7 * place + 3 * each) % 290 for place in range(20)] for each in range(2)]
            found = self._process.call(row.architecture, "probe", ids)
            self._process.call(row.architecture, "close")
        except Exception as error:  # noqa: BLE001 - of vLLM, which says what it lacks
            self.close()
            return " ".join(f"{type(error).__name__}: {error}".split())[:160]
        gap = float(np.abs(np.array(found) - _plain_logprobs(export, ids)).max())
        return "yes" if gap <= NEAR else f"log-probs {gap:.2g} off"

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None


def _plain_logprobs(export: Path, ids: list[list[int]]) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(export, attn_implementation="eager").eval()
    with torch.no_grad():
        logprobs = lm(input_ids=torch.tensor(ids), use_cache=False).logits.float().log_softmax(-1)
    return logprobs[:, :-1].gather(-1, torch.tensor(ids)[:, 1:, None])[..., 0].numpy()


def try_all(names: Sequence[str], *, vllm: bool = True) -> list[Row]:
    """Return what became of each of ``names``; a line of it on stderr as it is known."""
    rows, engines = [], Vllm()
    for name in names:
        row = Row(name)
        with TemporaryDirectory() as folder:
            export = take(row, Path(folder))
            if vllm and export is not None:
                row.vllm = engines.check(row, Path(folder) / "base", export)
        print(f"{name}: {row.problem or 'well'}; vLLM: {row.vllm}", file=sys.stderr)
        rows.append(row)
    engines.close()
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return the table, in Markdown."""
    lines = [
        "| architecture | parameters | SFT, RL, evaluation, export | sampled by | rows"
        " | learner and engine, nats | vLLM loads the export |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            f"`{row.architecture}`",
            f"{row.parameters:,}",
            row.problem or "yes",
            engine_of(row.architecture),
            "packed" if row.packed else "a document each",
            "" if row.gap is None else f"{row.gap:.1e}",
            row.vllm,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CLASS", help="all that are listed if none")
    parser.add_argument("--write", action="store_true", help="write the page architectures.md")
    options = parser.parse_args(arguments)
    os.environ.setdefault(STARTS, "200")  # Prefect's 20 are too few beside other work
    rows = try_all(options.names or LISTED)
    print(table(rows))
    if options.write:
        DOCUMENT.write_text(HEAD + table(rows) + TAIL, encoding="utf-8")
    return int(any(row.problem for row in rows))


if __name__ == "__main__":
    sys.exit(main())
