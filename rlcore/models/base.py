"""The base model as a local Hugging Face directory: copied, or made from random weights; and its
model and tokenizer loaded."""

import math
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jinja2 import TemplateError, TemplateSyntaxError

from rlcore.models.adapter import check_adapter
from rlcore.models.files import (
    context_of,
    copy_model,
    copy_tokenizer,
    locate_model,
    model_files,
    read_config,
    read_json,
    write_json,
)
from rlcore.models.soundness import (
    check_companions,
    check_finite,
    check_tokenizer_fits,
    check_weights,
)
from rlcore.models.stop_tokens import (
    TEMPLATE_ERRORS,
    Stops,
    check_generation,
    check_id,
    record_stops,
    stops_of,
)
from rlcore.models.tokenizer import (
    EOS,
    PAD,
    eos_token_id,
    load_tokenizer,
    model_tokenizer,
    train_tokenizer,
)
from rlcore.models.weight_names import empty_model, file_shapes, has_file_names, write_file_names
from rlcore.store.limits import within, within_memory
from schemas.errors import UserError
from schemas.model import FromScratch, ModelSection

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rlcore.models.tokenizer import ChatTokenizer


STD = 0.02  # of weights, Qwen2's initializer_range


def write_scratch(
    target: Path,
    shape: FromScratch,
    *,
    dtype: Literal["float32", "bfloat16"],
    vocab_size: int,
    eos: int,
    pad: int,
    seed: int,
) -> None:
    """Write config, generation config and weights into the directory ``target``.

    Weights as transformers draws them (``PreTrainedModel._init_weights``): normal of mean 0 and
    ``STD``, biases and the embedding of ``pad`` 0, norms 1; of equal bits for equal arguments.
    ``vocab_size``: the tokenizer's; ``eos``, ``pad``: token ids.
    """
    tokens = {"eos_token_id": eos, "pad_token_id": pad}
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "initializer_range": STD,
        "bos_token_id": None,
        **tokens,
        "dtype": dtype,
    }
    write_json(target / "config.json", config, sort_keys=True)
    write_json(target / "generation_config.json", tokens, sort_keys=True)
    # The command line imports this module, and waits for torch only where a model is made.
    import torch
    from safetensors.torch import save_file

    generator = np.random.default_rng(seed)
    weights = {}
    # In the order of the class's modules, which the draws depend on.
    for name, sizes in file_shapes(empty_model(target)).items():
        if len(sizes) == 1:
            values = np.full(sizes, 0.0 if name.endswith(".bias") else 1.0, dtype=np.float32)
        else:
            values = STD * generator.standard_normal(sizes, dtype=np.float32)
        if name == "model.embed_tokens.weight":
            values[pad] = 0.0
        weights[name] = torch.from_numpy(values).to(getattr(torch, dtype))
    save_file(weights, target / "model.safetensors", {"format": "pt"})


def load_pretrained(directory: Path) -> "tuple[PreTrainedModel, ChatTokenizer]":
    """Return model (on CPU, eval mode, dtype of its files) and tokenizer of ``directory``.

    Raises UserError when the tokenizer cannot be used.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    return model.eval(), load_tokenizer(directory)


TEMPLATE_S = 20.0  # for a question of one line, which takes milliseconds
TEMPLATE_BYTES = 1 << 30  # for that question, which takes kilobytes
TOKENIZER_TEXTS = 16384  # enough for every word of generated text; more only costs time


def check_base_model(model: ModelSection, source: Path, *, values_to: float = math.inf) -> Stops:
    """Return what ends a turn of the model of the directory ``source``; raise ``UserError`` when a
    run could not start from it.

    Its files are not sound (``check_model_files``, with ``values_to``), its context is shorter than
    ``model.max_tokens``, or its tokenizer cannot be loaded, has tokens that the model does not
    know, no EOS token that the model knows, or no chat template that is Jinja; or its
    stop tokens or generation_config.json cannot be used.
    """
    config = check_model_files(
        source, trust_remote_code=model.trust_remote_code, values_to=values_to
    )
    context = context_of(config)
    if context is not None and context < model.max_tokens:
        raise UserError(
            f"model.max_tokens = {model.max_tokens} exceeds max_position_embeddings = {context} of"
            f" model '{model.path}'; lower model.max_tokens"
        )
    tokenizer = model_tokenizer(model, source)
    vocab_size = config.get("vocab_size")
    if vocab_size is not None and eos_token_id(tokenizer) >= vocab_size:
        raise UserError(
            f"tokenizer of model '{model.path}' has the EOS token '{tokenizer.eos_token}' with id"
            f" {tokenizer.eos_token_id}, which the model cannot sample, whose config.json has"
            f' vocab_size = {vocab_size}; set "eos_token" in its tokenizer_config.json to a token'
            " of its vocabulary"
        )
    check_tokenizer_fits(tokenizer, source, config, name=model.path or str(source))
    _check_template(tokenizer, model)
    check_generation(source)
    return stops_of(source, tokenizer, model.stop_tokens)


def check_model_files(
    source: Path, *, trust_remote_code: bool = False, values_to: float = math.inf
) -> dict[str, Any]:
    """Return the config.json of the directory ``source``, whose files are sound.

    Raises ``UserError`` when it lacks a part (``model_files``), a file is not what its name says
    (``check_companions``), or its weights cannot be trained (``check_weights``), are not those of
    its class (``has_file_names``) or not all finite. ``values_to``: bytes of weights up to which
    every value is read.
    """
    config = read_config(source)
    files = model_files(source, trust_remote_code=trust_remote_code)
    check_companions(files)
    check_weights(source, config)
    has_file_names(source)
    if sum(file.stat().st_size for file in files if file.suffix == ".safetensors") <= values_to:
        check_finite(source)
    return config


def _check_template(tokenizer: Any, model: ModelSection) -> None:
    question = [{"role": "user", "content": "What is 1 + 1?"}]
    given = model.chat_template is not None
    whose = "model.chat_template" if given else f"tokenizer of model '{model.path}'"
    endless = (
        f"{whose}: the chat template takes longer than {TEMPLATE_S:.0f} s for a question of one"
        " line; set model.chat_template to one that ends"
    )
    boundless = (
        f"{whose}: the chat template takes more than {TEMPLATE_BYTES >> 30} GiB of memory for a"
        " question of one line; set model.chat_template to one that repeats less"
    )
    try:
        with within(TEMPLATE_S, endless), within_memory(TEMPLATE_BYTES, boundless):
            for open_turn in (False, True):
                tokenizer.apply_chat_template(
                    question, tokenize=False, add_generation_prompt=open_turn
                )
    except UserError:  # a ValueError, too
        raise
    except TemplateSyntaxError as error:
        raise UserError(
            f"{whose}: the chat template is not Jinja (line {error.lineno}: {error.message}); fix"
            " model.chat_template"
        ) from None
    except TemplateError:  # it compiles, and refuses this conversation only
        pass
    except TEMPLATE_ERRORS as error:
        raise UserError(
            f"{whose}: the chat template fails at a question of one line ({error}); fix"
            " model.chat_template (~ joins text and numbers, + does not)"
        ) from None


def copy_base_model(
    model: ModelSection,
    source: Path,
    target: Path,
    *,
    log: Callable[[str], None] = lambda line: None,
) -> Path:
    """Copy the model that ``model.path`` names from ``source`` to ``target``; return ``target``.

    All its stop tokens are listed in generation_config.json of ``target``; ``log`` is told them.

    ``source``: the directory that ``locate_model`` returns for it. Carries safetensors weights
    under their file names, configuration, tokenizer and ``model.chat_template`` if one is set.
    Raises ``UserError`` as ``check_base_model`` does.
    """
    assert model.path is not None, "a model from scratch is built, not copied"
    stops = check_base_model(model, source)
    check_adapter(model.adapter, source)
    _copy(source, target, model)
    if model.chat_template is not None:
        _set_chat_template(target, model)
    _record(target, stops, log)
    return target


def with_file_names(model: ModelSection, source: Path, target: Path) -> Path:
    """Return a directory from which engines can load the model of ``source``: itself, or
    ``target``, a copy under the file names of its class."""
    if has_file_names(source):
        return source
    _copy(source, target, model)
    return target


def _copy(source: Path, target: Path, model: ModelSection) -> None:
    copy_model(source, target, trust_remote_code=model.trust_remote_code)
    if not has_file_names(source):
        write_file_names(source, target)


def build_base_model(
    model: ModelSection,
    target: Path,
    *,
    texts: Iterable[str],
    seed: int,
    log: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write a Qwen2 of random weights and a tokenizer trained on ``texts``; return ``target``.

    ``log`` is told its stop tokens, as in ``copy_base_model``.

    Equal arguments give byte-identical files. Raises ``UserError`` for a vocabulary below 261.
    """
    shape = model.from_scratch
    assert shape is not None, "a model with a path is copied, not built"
    tokenizer = _trained_tokenizer(model, texts)
    target.mkdir(parents=True, exist_ok=True)
    write_scratch(
        target,
        shape,
        dtype=model.dtype,
        vocab_size=len(tokenizer),
        eos=tokenizer.get_vocab()[EOS],
        pad=tokenizer.get_vocab()[PAD],
        seed=seed,
    )
    _save_tokenizer(tokenizer, target)
    _record(target, stops_of(target, tokenizer, model.stop_tokens), log)
    return target


def base_tokenizer(model: ModelSection, target: Path, *, texts: Iterable[str]) -> "ChatTokenizer":
    """Return the tokenizer that the base model will have, without its weights.

    Its files go into the directory ``target``. ``texts``: what one from scratch is trained on.
    Raises ``UserError`` as ``build_base_model``, ``locate_model`` and ``load_tokenizer`` do.
    """
    if model.path is None:
        _save_tokenizer(_trained_tokenizer(model, texts), target)
    else:
        trusted = model.trust_remote_code
        source = locate_model(model.path, model.revision, trust_remote_code=trusted, weights=False)
        copy_tokenizer(source, target, trust_remote_code=trusted)
        if model.chat_template is not None:
            _set_chat_template(target, model)
    return model_tokenizer(model, target)


def scratch_stops(model: ModelSection) -> Stops:
    """Return the stop tokens of a model from scratch but ``model.stop_tokens``, which may be tokens
    that its tokenizer learns from the data. Raises ``UserError`` for an id that none of it has."""
    assert model.from_scratch is not None, "a model with a path has its tokenizer"
    for index, token in enumerate(model.stop_tokens):
        if isinstance(token, int):
            check_id(token, f"model.stop_tokens[{index}]", model.from_scratch.vocab_size)
    return stops_of(None, _trained_tokenizer(model, ()))


def _record(directory: Path, stops: Stops, log: Callable[[str], None]) -> None:
    record_stops(directory, stops)
    for line in stops.lines():
        log(line)


def _trained_tokenizer(model: ModelSection, texts: Iterable[str]) -> "ChatTokenizer":
    shape = model.from_scratch
    assert shape is not None, "a model with a path has its tokenizer"
    tokenizer = train_tokenizer(islice(texts, TOKENIZER_TEXTS), shape.vocab_size)
    if model.chat_template is not None:
        tokenizer.chat_template = model.chat_template
    tokenizer.model_max_length = shape.max_position_embeddings
    return tokenizer


def _save_tokenizer(tokenizer: "ChatTokenizer", target: Path) -> None:
    """Save a trained tokenizer so that transformers 4 reads it, too: special tokens without a name
    under the key of that release, and nothing that only the saving one would know."""
    tokenizer.save_pretrained(target)
    file = target / "tokenizer_config.json"
    config = read_json(file)
    for name in ("backend", "is_local", "local_files_only", "add_prefix_space"):
        config.pop(name, None)
    config["additional_special_tokens"] = config.pop("extra_special_tokens")
    write_json(file, config, sort_keys=True)


def _set_chat_template(target: Path, model: ModelSection) -> None:
    """Make ``model.chat_template`` the only one of the directory's tokenizer."""
    for file in target.glob("chat_template*"):
        file.unlink()
    config_file = target / "tokenizer_config.json"
    config = read_json(config_file) if config_file.is_file() else {}
    config.pop("chat_template", None)
    write_json(config_file, config)
    (target / "chat_template.jinja").write_text(model.chat_template or "", encoding="utf-8")
