"""Whether the files of a model directory are sound: whole, of one model, and trainable.

torch is imported where values are read, so that false headers are found without it.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.models.files import read_json
from rlcore.models.weight_files import StoredTensor, refuse_pointer, stored_tensors
from schemas.errors import UserError

if TYPE_CHECKING:
    import torch

    from rlcore.models.tokenizer import ChatTokenizer

_FLOATS = ("F64", "F32", "F16", "BF16")  # the format's dtypes that are trained
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
_HEADS = ("lm_head.weight", "embed_out.weight")
_OF_OTHER_SENSES = {
    f"{mark}_token" for mark in ("image", "boi", "eoi", "audio", "boa", "eoa", "video")
}
_MASK = "masked_bias"  # a constant of GPT-NeoX's and GPT-J's code: -1e9, which is -inf in float16


def check_companions(files: Iterable[Path]) -> None:
    """Raise ``UserError`` for a file that is a pointer of Git LFS, or is called .json and holds no
    JSON object."""
    for file in sorted(files):
        refuse_pointer(file)
        if file.suffix == ".json":
            read_json(file)


def check_weights(directory: Path, config: Mapping[str, Any]) -> None:
    """Raise ``UserError`` where the weights of ``directory`` cannot be trained, or contradict its
    ``config``; values are compared only of a head beside tied embeddings.

    Quantised weights, or a head that differs from the embedding that config.json says it is; of
    shapes ``has_file_names`` says. Raises as ``stored_tensors``, too.
    """
    tensors = stored_tensors(directory)
    quantised = config.get("quantization_config")
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise UserError(
            f"model.path = '{directory}' is quantised (quantization_config of config.json:"
            f" {method}), and quantised weights are not trained; give the unquantised model, or"
            " save it dequantised"
        )
    for name, tensor in tensors.items():
        if name.endswith("weight") and tensor.dtype not in _FLOATS:
            raise UserError(
                f"weights file {tensor.file}: '{name}' is of dtype {tensor.dtype}, and weights of"
                f" {', '.join(_FLOATS)} are trained; give the unquantised model"
            )
    embedding = embedding_of(tensors)
    if embedding is not None:
        _check_tied(tensors, embedding, config, directory)


def embedding_of(tensors: Mapping[str, StoredTensor]) -> StoredTensor | None:
    """Return the input embedding, [tokens, width]; None where none has one of the usual names."""
    for name, tensor in tensors.items():
        if name.endswith(_EMBEDDINGS) and len(tensor.shape) == 2:
            return tensor
    return None


def _check_tied(
    tensors: Mapping[str, StoredTensor],
    embedding: StoredTensor,
    config: Mapping[str, Any],
    directory: Path,
) -> None:
    head = next((tensors[name] for name in _HEADS if name in tensors), None)
    if head is None or not _is_tied(config, directory):
        return
    if not _equal(embedding, head):
        raise UserError(
            f"model.path = '{directory}' has tie_word_embeddings = true and an '{head.name}' that"
            f" is not '{embedding.name}', and loaders differ in which they use; set"
            f" tie_word_embeddings to false in config.json, or remove '{head.name}' from the"
            " weights"
        )


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    import torch

    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    # Bits: NaN differs from itself.
    return torch.equal(_values(one).view(torch.uint8), _values(other).view(torch.uint8))


def _values(tensor: StoredTensor) -> "torch.Tensor":
    from safetensors import safe_open

    with safe_open(tensor.file, framework="pt") as opened:
        return opened.get_tensor(tensor.name)


def _is_tied(config: Mapping[str, Any], directory: Path) -> bool:
    for part in (config, _text_config(config)):
        if (tied := part.get("tie_word_embeddings")) is not None:
            return bool(tied)
    from transformers import AutoConfig  # it has each class's own default

    try:
        whole = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        return bool(whole.get_text_config().tie_word_embeddings)
    except (OSError, ValueError, KeyError, AttributeError):  # told where the model is built
        return False


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of ``config`` that describes the language model."""
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def check_finite(directory: Path) -> None:
    """Raise ``UserError`` naming the first of the weights that holds NaN or an infinity.

    Reads every value. Raises as ``stored_tensors``, too.
    """
    from safetensors import safe_open

    with ExitStack() as stack:
        # Once a file: opening one reads its whole header.
        opened = cache(lambda file: stack.enter_context(safe_open(file, framework="pt")))
        for name, tensor in stored_tensors(directory).items():
            if tensor.dtype not in _FLOATS or name.endswith(_MASK) or 0 in tensor.shape:
                continue
            values = opened(tensor.file).get_tensor(name)
            # Both ends are NaN where any value is; counting takes ten times as long.
            if all(end.isfinite() for end in values.aminmax()):
                continue
            count = int((~values.isfinite()).sum())
            raise UserError(
                f"weights file {tensor.file}: '{name}' holds NaN or infinity in {count:,} of its"
                f" {values.numel():,} values; fetch or save the model again"
            )


def check_tokenizer_fits(
    tokenizer: "ChatTokenizer", directory: Path, config: Mapping[str, Any], *, name: str
) -> None:
    """Raise ``UserError`` where ``tokenizer`` has a token that the embedding of ``directory`` has
    no row for, ``name`` the model's name.

    Marks of images and sounds may be missing there: the text model of a family (Gemma 3 1B) shares
    the tokenizer of its siblings that see.
    """
    embedding = embedding_of(stored_tensors(directory))
    rows = _text_config(config).get("vocab_size") if embedding is None else embedding.shape[0]
    seen = {v for k, v in tokenizer.special_tokens_map.items() if k in _OF_OTHER_SENSES}
    beyond = {
        token: number
        for token, number in tokenizer.get_vocab().items()
        if rows is not None and number >= rows and token not in seen
    }
    if beyond:
        token = min(beyond, key=lambda each: beyond[each])
        raise UserError(
            f"tokenizer of model '{name}' has {len(beyond):,} tokens that the model has no"
            f" embedding for, such as '{token}' with id {beyond[token]}, of {rows:,} rows;"
            " add rows with model.resize_token_embeddings(len(tokenizer)) and save it, or take the"
            " model's own tokenizer"
        )
