"""One mapping between names in files and names in memory, for every architecture on the list."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, T5Config

from rlcore.learner.packing_check import LISTED
from rlcore.models.base import check_base_model, copy_base_model, with_file_names
from rlcore.models.weight_digest import canonical_names
from rlcore.models.weight_files import checkpoint_shapes, read_checkpoint
from rlcore.models.weight_names import file_state, from_files, has_file_names
from schemas.errors import UserError
from schemas.model import ModelSection
from tests.architectures import write_model
from tests.tiers import fast

State = dict[str, torch.Tensor]


# Their names on disk differ from those in memory, each in its own way; and a plain one.
RENAMED = ("Qwen2ForCausalLM", "Qwen3MoeForCausalLM", "GPTNeoXForCausalLM", "Gemma3ForCausalLM")


@pytest.mark.parametrize("architecture", fast(LISTED, *RENAMED))
def test_a_model_goes_to_files_and_back(architecture: str, tmp_path: Path) -> None:
    write_model(tmp_path, architecture)
    assert has_file_names(tmp_path)
    written = read_checkpoint(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(model).__name__ == architecture
    state = file_state(model)
    assert state.keys() == written.keys()
    assert all(torch.equal(tensor, written[name]) for name, tensor in state.items())

    held = model.state_dict()
    back = from_files(model, written)
    assert sorted(back) == sorted(canonical_names(model))
    assert all(torch.equal(tensor, held[name]) for name, tensor in back.items())

    model.save_pretrained(tmp_path / "again")
    assert checkpoint_shapes(tmp_path / "again") == checkpoint_shapes(tmp_path)


def edited(directory: Path, architecture: str, edit: Callable[[State], State]) -> None:
    write_model(directory, architecture)
    state = {name: tensor.clone() for name, tensor in read_checkpoint(directory).items()}
    save_file(edit(state), directory / "model.safetensors", metadata={"format": "pt"})


def masks(prefix: str) -> State:
    return {f"{prefix}.bias": torch.ones(1, 1, 4, 4), f"{prefix}.masked_bias": torch.ones(())}


OLDER: dict[str, tuple[str, Callable[[State], State]]] = {
    "without the prefix, as gpt2 on the hub": (
        "GPT2LMHeadModel",
        lambda state: {name.removeprefix("transformer."): t for name, t in state.items()},
    ),
    "with buffers, as pythia on the hub": (
        "GPTNeoXForCausalLM",
        lambda state: (
            state
            | masks("gpt_neox.layers.0.attention")
            | {"gpt_neox.layers.0.attention.rotary_emb.inv_freq": torch.ones(4)}
        ),
    ),
    "names in memory, as transformers wrote with save_original_format off": (
        "GPTNeoXForCausalLM",
        lambda state: {name.replace("embed_out", "lm_head"): t for name, t in state.items()},
    ),
}


@pytest.mark.parametrize("case", OLDER)
def test_a_base_model_of_other_names_is_written_under_those_of_its_class(
    case: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    edited(source, *OLDER[case])
    before = AutoModelForCausalLM.from_pretrained(source).state_dict()
    section = ModelSection(path=str(source), max_tokens=64)
    assert not has_file_names(source)
    check_base_model(section, source)
    for target in (
        copy_base_model(section, source, tmp_path / "base"),
        with_file_names(section, source, tmp_path / "other"),
    ):
        assert has_file_names(target)
        assert (target / "config.json").read_bytes() == (source / "config.json").read_bytes()
        after = AutoModelForCausalLM.from_pretrained(target).state_dict()
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert with_file_names(section, target, tmp_path / "unused") == target


WRONG: dict[str, tuple[str, Callable[[State], State], str]] = {
    "lacks one": (
        "LlamaForCausalLM",
        lambda state: {name: t for name, t in state.items() if "1.mlp.up_proj" not in name},
        "lacks 'model.layers.1.mlp.up_proj.weight', which would be drawn at random",
    ),
    "lacks an expert": (
        "MixtralForCausalLM",
        lambda state: {name: t for name, t in state.items() if "experts.3." not in name},
        "in other shapes than config.json has",
    ),
    "holds another head": (
        "Qwen2ForCausalLM",
        lambda state: {**state, "score.weight": torch.ones(1, 64)},
        "holds 'score.weight', which Qwen2ForCausalLM does not have",
    ),
    "another vocabulary": (
        "LlamaForCausalLM",
        lambda state: {**state, "lm_head.weight": torch.ones(7, 64)},
        "holds 'lm_head.weight' in other shapes than config.json has",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_weights_that_are_not_those_of_the_class_are_refused(case: str, tmp_path: Path) -> None:
    architecture, edit, problem = WRONG[case]
    edited(tmp_path, architecture, edit)
    with pytest.raises(UserError, match=re.escape(problem)):
        check_base_model(ModelSection(path=str(tmp_path), max_tokens=64), tmp_path)


def test_what_is_no_causal_language_model_is_refused_by_its_class(tmp_path: Path) -> None:
    write_model(tmp_path, "Qwen2ForCausalLM")
    rows = len(read_checkpoint(tmp_path)["model.embed_tokens.weight"])
    kind = ["T5ForConditionalGeneration"]
    config: dict[str, Any] = {"vocab_size": rows, "tie_word_embeddings": False}
    T5Config(architectures=kind, **config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"is of .'T5ForConditionalGeneration'.*no causal language"):
        check_base_model(ModelSection(path=str(tmp_path), max_tokens=64), tmp_path)
