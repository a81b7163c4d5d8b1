"""Tokenizers: one trained from text, and the checks on any that is loaded."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as ChatTokenizer

    from schemas.model import ModelSection

# Loaders use Qwen2Tokenizer for every Qwen2 model, and it makes "<|endoftext|>" special.
SPECIAL_TOKENS = ("<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
PAD, EOS, SYSTEM, USER, ASSISTANT = SPECIAL_TOKENS
# One token before each turn, one after the assistant's.
MINIMAL_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> "ChatTokenizer":
    """Return a byte-level BPE tokenizer of at most ``vocab_size`` entries, minimal chat template.

    Any text (NFC) is encoded and decoded without loss; each digit is a token. Equal texts give an
    equal tokenizer. It is a ``Qwen2Tokenizer``: loaders use that class, and its pre-tokenizer, for
    a Qwen2 directory whatever tokenizer.json says. Raises ``UserError`` when ``vocab_size`` is
    below 256 bytes + the special tokens.
    """
    from tokenizers import Tokenizer, models, trainers
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    least = 256 + len(SPECIAL_TOKENS)
    if vocab_size < least:
        raise UserError(
            f"model.from_scratch.vocab_size = {vocab_size} is below {least} (256 bytes and"
            f" {len(SPECIAL_TOKENS)} special tokens); set it to 512"
        )
    blank = Qwen2Tokenizer().backend_tokenizer
    trained = Tokenizer(models.BPE())
    trained.normalizer = blank.normalizer
    trained.pre_tokenizer = blank.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    model: dict[str, Any] = json.loads(trained.to_str())["model"]
    merges: Any = [tuple(pair) for pair in model["merges"]]
    return Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=merges,
        pad_token=PAD,
        eos_token=EOS,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=MINIMAL_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(
    directory: Path,
    *,
    name: str = "",
    trust_remote_code: bool = False,
    chat_template: str | None = None,
) -> "ChatTokenizer":
    """Return the tokenizer of a model directory; ``name`` is its name in errors.

    ``chat_template``: replaces its own. Raises ``UserError`` when it cannot be loaded or has no EOS
    token or chat template. A pad token is not needed: rows are packed, nothing is padded.
    """
    name = name or str(directory)
    tokenizer = read_tokenizer(directory, name, trust_remote_code=trust_remote_code)
    if tokenizer.eos_token is None:
        raise UserError(
            f"tokenizer of model '{name}' has no eos_token; set \"eos_token\" in its"
            " tokenizer_config.json to one of its special tokens"
        )
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if not tokenizer.chat_template:
        raise UserError(
            f"tokenizer of model '{name}' has no chat template; set model.chat_template"
        )
    return tokenizer


def model_tokenizer(model: "ModelSection", directory: Path) -> "ChatTokenizer":
    """Return the tokenizer of ``directory``, as ``model`` says; raises as ``load_tokenizer``."""
    return load_tokenizer(
        directory,
        name=model.path or "",
        trust_remote_code=model.trust_remote_code,
        chat_template=model.chat_template,
    )


def read_tokenizer(
    directory: Path, name: str, *, trust_remote_code: bool = False
) -> "ChatTokenizer":
    """Return the tokenizer of ``directory``, whatever it lacks; ``name`` is its name in errors.
    Raises UserError where it cannot be loaded."""
    try:
        from transformers import AutoTokenizer

        # mistral_format: beside a tekken.json it would be mistral-common's, without a template.
        return AutoTokenizer.from_pretrained(
            directory, trust_remote_code=trust_remote_code, mistral_format=False
        )
    # Untrusted files, which may be JSON of any shape, and tokenizers raises bare Exceptions: name
    # the model.
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise UserError(
            f"tokenizer of model '{name}' cannot be loaded: {first_line}; fetch or save it again"
        ) from error


def special_tokens(tokenizer: "ChatTokenizer") -> list[str]:
    """Return every token that is read as one wherever its text appears, longest first: the named
    ones, and those that its files mark as special (Llama 3's turn marks have no name)."""
    marked = [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]
    named = [str(token) for token in tokenizer.all_special_tokens]
    return sorted({*named, *marked}, key=lambda token: (-len(token), token))


def eos_token_id(tokenizer: Any) -> int:
    """Return the id that ends a response. ``load_tokenizer`` refuses a tokenizer without one."""
    token = tokenizer.eos_token_id
    assert isinstance(token, int), f"one eos token is expected, not {token!r}"
    return token
