"""Which attention a learner computes with, by device, dtype and installed package.

Imports nothing heavy: the dry run asks too.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

AUTO, SDPA, FLASH = "auto", "sdpa", "flash_attention_2"
PACKAGE = "flash_attn"
INSTALL = "uv pip install --no-build-isolation --editable '.[flash]'"


@dataclass(frozen=True, slots=True)
class Attention:
    """``name`` as transformers has it, and ``why`` it was taken: "as ..."."""

    name: str
    why: str


def choose_attention(wanted: str, *, device: str, dtype: str, problem: str | None) -> Attention:
    """Return what ``wanted`` means on ``device``; ``problem``: why flash attention cannot be used
    there, see ``flash_missing``.

    "auto" is sdpa on a CPU, on a GPU flash attention where it can be used and sdpa elsewhere. A
    learner whose model that does not serve takes sdpa after all (``rlcore.learner.packing_check``).
    """
    if wanted != AUTO:
        missing = f", but {problem} ({INSTALL})" if wanted == FLASH and problem else ""
        return Attention(wanted, f"as hardware.learner.attention says{missing}")
    if device != "cuda":
        return Attention(SDPA, f"as the device is {device}")
    if dtype != "bfloat16":
        return Attention(SDPA, f"as flash attention computes in bfloat16 and the model in {dtype}")
    if problem is not None:
        return Attention(SDPA, f"as {problem} ({INSTALL})")
    return Attention(FLASH, f"as {PACKAGE} is there; sdpa if packed documents do not stay apart")


def flash_missing() -> str | None:
    """Return that the package is not installed here, or None. Imports nothing."""
    return f"the package {PACKAGE} is not installed" if find_spec(PACKAGE) is None else None


def flash_problem() -> str | None:
    """Return why the package cannot be imported in this process, or None where it can.

    A wheel for another torch or CUDA is installed and does not import.
    """
    if (missing := flash_missing()) is not None:
        return missing
    try:
        import_module(PACKAGE)
    except (ImportError, OSError) as error:
        return f"the package {PACKAGE} does not import: {' '.join(str(error).split())}"
    return None


def divides_heads(ranks: int, heads: int, key_heads: int) -> bool:
    """Return whether ``ranks`` can divide a model's sequences: each has as many of its ``heads`` of
    attention, and heads of keys of its own or one that several ranks have."""
    return heads % ranks == 0 and (key_heads % ranks == 0 or ranks % key_heads == 0)


def uneven_heads(ranks: int, heads: int, key_heads: int, model: str) -> str:
    """Return the sentence on a ``model`` for which that does not hold."""
    fits = max(n for n in range(1, ranks) if divides_heads(n, heads, key_heads))
    return (
        f"hardware.learner.sequence_parallel = {ranks} does not divide the {heads} attention heads"
        f" and {key_heads} heads of keys of {model}; set it to a number that does, such as {fits}"
    )
