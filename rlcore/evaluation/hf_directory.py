"""A policy as a Hugging Face directory that is verified to be the policy, its files in the form
that the base has.

transformers 5 saves a tokenizer as ``TokenizersBackend``, its special tokens as a list, and rotary
settings under ``rope_parameters``. Release 4 cannot read the first two, and takes the default for
the third without a word.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.models.files import copy_tokenizer, read_config, read_json, with_dtype, write_json
from rlcore.models.stop_tokens import (
    GENERATION,
    TEMPLATE_ERRORS,
    Stops,
    make_sampling_consistent,
    read_generation,
    stops_of,
)
from rlcore.models.tokenizer import load_tokenizer
from rlcore.models.weight_digest import state_digest
from rlcore.models.weight_names import file_state
from schemas.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.configuration_utils import PreTrainedConfig


CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
OLDEST = (4, 57)  # the release before 5; the card's snippet needs 4.56
_BACKENDS = ("TokenizersBackend", "PythonBackend", "SentencePieceBackend", "MistralCommonBackend")


def keep_form(policy_dir: Path, target: Path, *, dtype: str, trust_remote_code: bool) -> None:
    """Give ``target`` the configuration and tokenizer of ``policy_dir``, whose files are the base's
    where training did not change them.

    ``dtype``: of the weights in ``target``. Of its generation_config.json, which may hold what the
    base's lacked, only the version of transformers is the base's.
    """
    written = read_generation(target)  # before the policy's takes its place
    copy_tokenizer(policy_dir, target, trust_remote_code=trust_remote_code)
    write_json(target / CONFIG, with_dtype(read_config(policy_dir), dtype))
    if written:
        written.pop("transformers_version", None)
        before = read_generation(policy_dir)
        kept = {k: v for k, v in before.items() if k in written or k == "transformers_version"}
        write_json(target / GENERATION, {**kept, **written})


def needed_transformers(directory: Path) -> str:
    """Return the oldest release of transformers that reads ``directory``, as far as its files say:
    5.0 where they have a form of it, else the one that wrote config.json, at least ``OLDEST``."""
    config, file = read_config(directory), directory / TOKENIZER
    tokenizer = read_json(file) if file.is_file() else {}
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    of_5 = (
        tokenizer.get("tokenizer_class") in _BACKENDS
        or isinstance(tokenizer.get("extra_special_tokens"), list)
        or any("rope_parameters" in part and "rope_theta" not in part for part in parts)
    )
    said = re.match(r"(\d+)\.(\d+)", str(config.get("transformers_version", "")))
    wrote = (int(said[1]), int(said[2])) if said else OLDEST
    major, minor = max(OLDEST, wrote, (5, 0) if of_5 else OLDEST)
    return f"{major}.{minor}"


SHARD_SIZE = "5GB"  # the hub's convention
PROBE_ROWS, PROBE_TOKENS = 4, 64
# Relative to the largest logit. Equal weights may still give different rounding: on some CPUs it
# depends on the alignment of a matrix in memory, which differs between two files.
LOGITS_TOLERANCE = {"torch.bfloat16": 0.05, "torch.float16": 0.01}
FULL_PRECISION_TOLERANCE = 1e-4
PROBE_TEXTS = (
    "Natalia sold 48 clips in April and half as many in May: 48+24=72.\n#### 72",
    "  two  spaces,\ttab, \n\nblank line, 1,234.5 and $7",
    "naïve café, 東京, مرحبا, 🙂",
)
PROBE_MESSAGES = (
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "And 4 more?"},
)
# What save_pretrained or the cast changes by design.
VOLATILE_CONFIG = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"}


class ExportError(UserError):
    """The written directory is not the policy."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was compared: weights are equal bit for bit, ``logits_max_abs_diff`` is rounding.

    ``transformers``: the oldest release that reads the directory (``needed_transformers``).
    ``stop_tokens``: what ends a turn, as text with its id.
    """

    parameters: int
    dtype: str
    tied: bool
    weights_digest: str
    chat_template_sha256: str
    logits_max_abs_diff: float
    transformers: str
    stop_tokens: list[str]


def write_verified(
    policy_dir: Path, target: Path, *, dtype: str | None, trust_remote_code: bool = False
) -> Proof:
    """Write the model of ``policy_dir`` to ``target``, reload it, and compare the two.

    safetensors in shards of ``SHARD_SIZE``, config, generation config, tokenizer, chat template, in
    the form that the policy's files have (``keep_form``).
    ``dtype`` None keeps that of the weights. Raises ``ExportError`` naming the first difference in
    weights, logits (beyond rounding), tied embeddings, configuration, tokenizer or chat template;
    the caller must then not publish ``target``.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # of files that are here
    source = load_policy(policy_dir, dtype or "auto", trust_remote_code)
    source_tokenizer = load_tokenizer(policy_dir, trust_remote_code=trust_remote_code)
    stops = stops_of(policy_dir, source_tokenizer)
    _save(source, target, stops)
    keep_form(policy_dir, target, dtype=_short(source.dtype), trust_remote_code=trust_remote_code)
    written = load_policy(target, "auto", trust_remote_code)
    written_tokenizer = load_tokenizer(target, trust_remote_code=trust_remote_code)
    expected, found = _probes(source, source_tokenizer), _probes(written, written_tokenizer)
    for what, probe in expected.items():
        if probe != found[what]:
            raise _unlike(what, probe, found[what], target)
    difference, largest = _logits_difference(source, written)
    tolerance = LOGITS_TOLERANCE.get(str(written.dtype), FULL_PRECISION_TOLERANCE)
    if not difference <= tolerance * largest:
        raise _unlike("logits: max abs difference", 0.0, difference, target)
    return Proof(
        parameters=written.num_parameters(),
        dtype=_short(written.dtype),
        tied=found["tied embeddings"],
        weights_digest=found["weights"],
        chat_template_sha256=found["chat template (sha256)"],
        logits_max_abs_diff=difference,
        transformers=needed_transformers(target),
        stop_tokens=[str(token) for token in stops.tokens],
    )


def _save(model: "PreTrainedModel", target: Path, stops: Stops) -> None:
    """Write ``model`` with a generation config that lists ``stops`` and agrees with itself; what
    else its base has there stays, also what ``save_pretrained`` of transformers would refuse."""
    generation = model.generation_config
    if generation is not None:
        make_sampling_consistent(generation)
        generation.eos_token_id = stops.added_to(generation.eos_token_id)
        model.generation_config = type(generation)()
    model.save_pretrained(target, max_shard_size=SHARD_SIZE)
    if generation is not None:
        model.generation_config = generation
        generation.to_json_file(target / GENERATION, keys_to_pop=["compile_config"])


def load_policy(directory: Path, dtype: str, trust_remote_code: bool) -> "PreTrainedModel":
    """Return the model of ``directory`` in eval mode. Raises ``UserError`` where there is none."""
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:  # untrusted files: name the model
        first_line = str(error).strip().partition("\n")[0]
        raise UserError(
            f"model in {directory} cannot be loaded: {first_line}; give a directory written by"
            " save_pretrained"
        ) from error
    return model.eval()


def _short(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


def _unlike(what: str, expected: Any, found: Any, target: Path) -> ExportError:
    """Return the error, which quotes short values."""
    values = f": {expected!r} became {found!r}"
    return ExportError(
        f"export to {target}: {what} of the reloaded model differ from the policy's"
        f"{values if len(values) < 200 else ''}; nothing was published, check the model class and"
        " the transformers version"
    )


def _settings(config: "PreTrainedConfig | GenerationConfig | None") -> dict[str, Any]:
    values = {} if config is None else config.to_dict()
    return {name: value for name, value in values.items() if name not in VOLATILE_CONFIG}


def _logits_difference(
    source: "PreTrainedModel", written: "PreTrainedModel"
) -> tuple[float, float]:
    """Return max |difference| and max |logit| over a grid of ids that spans the vocabulary."""
    import torch

    vocab_size = source.config.get_text_config().vocab_size
    count = PROBE_ROWS * PROBE_TOKENS
    ids = (torch.arange(count) * max(1, vocab_size // count)) % vocab_size
    ids = ids.reshape(PROBE_ROWS, PROBE_TOKENS)
    with torch.no_grad():
        expected = source(input_ids=ids, use_cache=False).logits
        found = written(input_ids=ids, use_cache=False).logits
    expected, found = expected.float(), found.float()
    return float((expected - found).abs().max()), float(expected.abs().max())


def _probes(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> dict[str, Any]:
    """Return everything about the two that training and serving depend on, logits apart."""
    head = model.get_output_embeddings()
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in PROBE_TEXTS]
    chat: Any
    try:
        chat = tokenizer.apply_chat_template(
            list(PROBE_MESSAGES), add_generation_prompt=True, return_dict=False
        )
    except TEMPLATE_ERRORS as error:  # one may demand a system message, which the data have
        chat = str(error)
    return {
        "weights": state_digest(file_state(model).items()),
        "tied embeddings": head is not None and head.weight is model.get_input_embeddings().weight,
        "configuration": _settings(model.config),
        "generation_config": _settings(model.generation_config),
        "vocabulary": tokenizer.get_vocab(),
        "special tokens": tokenizer.special_tokens_map,
        "token ids of the probe texts": encoded,
        "round trip of the probe texts": [tokenizer.decode(ids) for ids in encoded],
        "chat template (sha256)": hashlib.sha256(str(tokenizer.chat_template).encode()).hexdigest(),
        "token ids of the probe chat": chat,
    }
