"""False files of a model are refused in one sentence, by the dry run and by ``evaluate``: most were
found after hours of training, or never."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from flows.cli import main
from rlcore.models.base import build_base_model, check_base_model, copy_base_model
from rlcore.models.soundness import check_finite
from schemas.errors import UserError
from schemas.model import FromScratch, ModelSection
from tests.rlcore.api.tiny import CONTEXT, TEXTS, write_tiny_model

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n"
UP = "model.layers.0.mlp.up_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("sound") / "model")


def cut(file: str, size: float) -> Callable[[Path], None]:
    """Keep the fraction ``size`` of a file."""

    def damage(model: Path) -> None:
        content = (model / file).read_bytes()
        (model / file).write_bytes(content[: int(len(content) * size)])

    return damage


def written(file: str, text: str) -> Callable[[Path], None]:
    def damage(model: Path) -> None:
        (model / file).write_text(text)

    return damage


def configured(**changes: Any) -> Callable[[Path], None]:
    def damage(model: Path) -> None:
        config = json.loads((model / "config.json").read_text()) | changes
        (model / "config.json").write_text(json.dumps(config))

    return damage


def changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """Change the tensors of the file of weights."""

    def damage(model: Path) -> None:
        state = load_file(model / WEIGHTS)
        change(state)
        save_file(state, model / WEIGHTS, metadata={"format": "pt"})

    return damage


def value(name: str, number: float, dtype: torch.dtype) -> Callable[[Path], None]:
    """Give one weight of a model of ``dtype`` the value ``number``."""

    def change(state: dict[str, torch.Tensor]) -> None:
        for each in state:
            state[each] = state[each].to(dtype)
        state[name].view(-1)[7] = number

    return changed(change)


def sharded(model: Path, edit: Callable[[dict[str, str]], object] = lambda listed: None) -> None:
    """Save the model in shards, ``edit`` the index."""
    lm = AutoModelForCausalLM.from_pretrained(model)
    (model / WEIGHTS).unlink()
    lm.save_pretrained(model, max_shard_size="30KB")
    index = json.loads((model / INDEX).read_text())
    edit(index["weight_map"])
    (model / INDEX).write_text(json.dumps(index))


def without_a_shard(model: Path) -> None:
    sharded(model)
    min(model.glob("model-*")).unlink()


def with_a_cut_shard(model: Path) -> None:
    sharded(model)
    cut(max(model.glob("model-*")).name, 0.6)(model)


def with_a_shard_of_before(model: Path) -> None:
    sharded(model)
    shutil.copyfile(min(model.glob("model-*")), model / "model-00009-of-00009.safetensors")


def with_both_forms(model: Path) -> None:
    content = (model / WEIGHTS).read_bytes()
    sharded(model)
    (model / WEIGHTS).write_bytes(content)


def without_its_index(model: Path) -> None:
    sharded(model)
    (model / INDEX).unlink()


def pickled(model: Path) -> None:
    (model / WEIGHTS).rename(model / "pytorch_model.bin")


def more_tokens(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens([f"<more{number}>" for number in range(400)])
    tokenizer.save_pretrained(model)


def another_head(model: Path) -> None:
    changed(lambda state: state.update({"lm_head.weight": state[EMBEDDING] + 0.01}))(model)


def a_quantised_weight(model: Path) -> None:
    changed(lambda state: state.update({UP: state[UP].to(torch.float8_e4m3fn)}))(model)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (cut(WEIGHTS, 0.7), "is not a readable safetensors file (47,"),
    "truncated in its header": (cut(WEIGHTS, 0.005), "is not a readable safetensors file (337 b"),
    "empty": (cut(WEIGHTS, 0.0), "is not a readable safetensors file (0 bytes: "),
    "a page of a proxy": (written(WEIGHTS, "<html>"), "is not a readable safetensors file (6 by"),
    "a pointer": (written(WEIGHTS, POINTER), "is a pointer of Git LFS in place of the file; run"),
    "a pointer for the tokenizer": (written("tokenizer.json", POINTER), "a pointer of Git LFS in"),
    "pickled": (pickled, "only pytorch_model.bin, which is not read because a pickle may run code"),
    "a shard missing": (without_a_shard, "weight files of its index, such as model-00001-of-"),
    "a shard truncated": (with_a_cut_shard, "is not a readable safetensors file ("),
    "a shard of an earlier save": (with_a_shard_of_before, "model-00009-of-00009.safetensors besi"),
    "a file of an earlier save": (with_both_forms, "holds model.safetensors beside the model's"),
    "no index": (without_its_index, "and no model.safetensors.index.json that says which files"),
    "an index without a tensor": (
        lambda model: sharded(model, lambda listed: listed.pop(UP)),
        f"says that '{UP}' is in no file, and it is in model-0000",
    ),
    "an index with another tensor": (
        lambda model: sharded(model, lambda listed: listed.update(x=min(listed.values()))),
        "says that 'x' is in model-00001-of-",
    ),
    "an index that is none": (written(INDEX, "[]"), "model.safetensors.index.json cannot be read"),
    "an index of a parent folder": (
        written(INDEX, json.dumps({"weight_map": {"x": "../model/model.safetensors"}})),
        "lacks 1 of 1 weight files of its index, such as ../model/model.safetensors",
    ),
    "NaN": (value(UP, float("nan"), torch.float32), f"'{UP}' holds NaN or infinity in 1 of its"),
    "infinity": (value(EMBEDDING, float("-inf"), torch.bfloat16), "holds NaN or infinity in 1 of"),
    "NaN of half": (value(UP, float("nan"), torch.float16), f"'{UP}' holds NaN or infinity in 1"),
    "an overflow of double": (value(UP, 1e308 * 10, torch.float64), "holds NaN or infinity in 1 "),
    "more tokens than rows": (more_tokens, "such as '<more"),
    "another vocabulary": (configured(vocab_size=999), "in other shapes than config.json has"),
    "another width": (configured(hidden_size=64), "in other shapes than config.json has"),
    "a tied head of its own": (another_head, "has tie_word_embeddings = true and an 'lm_head.w"),
    "a quantised weight": (a_quantised_weight, f"'{UP}' is of dtype F8_E4M3, and weights of"),
    "a quantised model": (
        configured(quantization_config={"quant_method": "gptq", "bits": 4}),
        "is quantised (quantization_config of config.json: gptq), and quantised weights are not",
    ),
    "a truncated config": (cut("config.json", 0.5), "config.json cannot be read: "),
    "a config that is a list": (written("config.json", "[1]"), "config.json holds no JSON object"),
    "a truncated tokenizer": (cut("tokenizer.json", 0.5), "tokenizer.json cannot be read: "),
    "a tokenizer of no model": (written("tokenizer.json", "{}"), "tokenizer of model '"),
    "half a tokenizer": (written("tokenizer.json", '{"model": {"type": "BPE"}}'), "be loaded: "),
    "a generation config": (written("generation_config.json", "eos: 1"), "n_config.json cannot be"),
    "a truncated tokenizer config": (cut("tokenizer_config.json", 0.5), "config.json cannot be re"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_false_file_is_refused_in_a_sentence(
    fault: str, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, said = FAULTS[fault]
    model = tmp_path / "model"
    shutil.copytree(sound, model)
    damage(model)
    capsys.readouterr()  # of transformers, which saved some
    small = {"data.max_prompt_tokens": 48, "sft.max_tokens": 96, "model.max_tokens": CONTEXT}
    settings = {
        "model.from_scratch": None,
        "model.path": str(model),
        **small,
        "tracking.wandb": False,
        "store": str(tmp_path / "store"),
    }
    overrides = [x for key, v in settings.items() for x in ("-o", f"{key}={json.dumps(v)}")]
    for command in (
        ["run", "quickstart", "--dry-run", *overrides],
        ["run", "quickstart", *overrides],
        ["evaluate", str(model), "quickstart", *overrides],
        ["evaluate", str(sound), str(model), "quickstart", *overrides],
    ):
        code = main(command)
        error = capsys.readouterr().err
        assert (code, error.count("\n")) == (2, 1), error
        assert error.startswith("error: "), error
        assert said in error
        assert not (tmp_path / "store").exists()


def test_what_is_sound_passes_whatever_its_form(sound: Path, tmp_path: Path) -> None:
    """Shards, a head that repeats a tied embedding, a head of its own that says so, constants of a
    model's code, a mark of images that a text model has no row for (Gemma 3 1B)."""

    def repeated(state: dict[str, torch.Tensor]) -> None:
        state["lm_head.weight"] = state[EMBEDDING].clone()

    def masks(state: dict[str, torch.Tensor]) -> None:
        state["model.layers.0.self_attn.bias"] = torch.ones(2, 2, dtype=torch.bool)
        state["model.layers.0.self_attn.masked_bias"] = torch.tensor(-1e9).half()

    def sees(model: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(model)
        mark = "<image_soft_token>"
        tokenizer.add_special_tokens({"additional_special_tokens": [mark]}, False)
        tokenizer.save_pretrained(model)
        config = json.loads((model / "tokenizer_config.json").read_text())
        config["image_token"] = mark
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        weights = load_file(model / WEIGHTS)[EMBEDDING]
        rows = AutoTokenizer.from_pretrained(model).convert_tokens_to_ids(mark)
        assert rows == len(weights)

    forms: list[list[Callable[[Path], object]]] = [
        [sharded],
        [changed(repeated)],
        [another_head, configured(tie_word_embeddings=False)],
        [changed(masks)],
        [sees],
        [lambda model: (model / "model.fp16.safetensors").write_bytes(b"a variant")],
    ]
    section = ModelSection(path="model", max_tokens=CONTEXT)
    for number, form in enumerate(forms):
        model = tmp_path / str(number)
        shutil.copytree(sound, model)
        for edit in form:
            edit(model)
        check_base_model(section, model)
        copied = copy_base_model(section, model, tmp_path / f"copy-{number}")
        assert not (copied / "model.fp16.safetensors").exists()


def test_large_weights_are_read_where_they_are_copied(sound: Path, tmp_path: Path) -> None:
    """A dry run that read 100 GiB would be no dry run, and the stage reads them anyway."""
    shutil.copytree(sound, tmp_path / "model")
    value(UP, float("nan"), torch.bfloat16)(tmp_path / "model")
    section = ModelSection(path="model", max_tokens=CONTEXT)
    check_base_model(section, tmp_path / "model", values_to=1)
    with pytest.raises(UserError, match=rf"'{UP}' holds NaN or infinity in 1 of its 1,024 values"):
        copy_base_model(section, tmp_path / "model", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_every_value_of_a_tensor_is_counted(tmp_path: Path) -> None:
    shape = FromScratch(vocab_size=300)
    section = ModelSection(from_scratch=shape, max_tokens=64)
    build_base_model(section, tmp_path, texts=TEXTS, seed=0)
    check_finite(tmp_path)
    large = torch.zeros(3, 1024, 1025, dtype=torch.bfloat16)
    for index in ((0, 0, 0), (1, 1023, 1024), (2, 1023, 1024)):
        large[index] = float("inf")
    save_file({"a.weight": large}, tmp_path / WEIGHTS)
    with pytest.raises(UserError, match="in 3 of its 3,148,800 values"):
        check_finite(tmp_path)
