"""The tokens that end a turn of a model, each with where it was found; generation_config.json.

A model that chats often has several: the tokenizer's EOS ends a document, another one ends a turn,
a third one a call of a tool. Whoever samples takes all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from rlcore.models.files import read_config, read_json, write_json
from rlcore.models.tokenizer import eos_token_id, special_tokens
from schemas.errors import UserError

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from rlcore.models.tokenizer import ChatTokenizer


# What templates raise: Jinja's own, and what Python's operators raise on their values.
TEMPLATE_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    ArithmeticError,
)
GENERATION = "generation_config.json"
# Of sampling alone, with the values that change nothing.
_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "typical_p": 1.0}
_SAMPLING |= {"min_p": None, "top_h": None, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}


def read_generation(directory: Path) -> dict[str, Any]:
    """Return the generation_config.json of ``directory``, {} where there is none. Raises UserError
    where it holds no JSON object."""
    file = directory / GENERATION
    return read_json(file) if file.is_file() else {}


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


def make_sampling_consistent(config: "GenerationConfig") -> None:
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


PLACEHOLDER = "PLACEHOLDER"
OPENING = [{"role": "user", "content": "?"}, {"role": "assistant", "content": PLACEHOLDER}]
NEVER_CLOSES = (
    "the chat template never writes a stop token behind an assistant turn, so no answer that is"
    " rendered by it has an end to learn; set model.chat_template to one that writes eos_token"
    " there, or the tokenizer's eos_token to the template's turn end"
)


@dataclass(frozen=True, slots=True)
class StopToken:
    """A token id, its text, and everything that names it."""

    id: int
    text: str
    origins: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.text!r} ({self.id})"


@dataclass(frozen=True, slots=True)
class Stops:
    """What ends a turn. ``closing``: the text of the token with which the chat template closes an
    assistant turn, None where it writes none."""

    tokens: tuple[StopToken, ...]
    closing: str | None

    @property
    def ids(self) -> tuple[int, ...]:
        """The token ids, the tokenizer's EOS first."""
        return tuple(token.id for token in self.tokens)

    def added_to(self, listed: Any) -> Any:
        """Return an ``eos_token_id`` of ``listed`` (an id, several or None) and all of these; where
        there is one stop token alone, ``listed``."""
        before = _as_list(listed)
        missing = [one for one in self.ids if one not in before]
        return [*before, *missing] if missing and len(self.ids) > 1 else listed

    def lines(self) -> list[str]:
        """Return a line per token with its origins, and a warning where the template has none."""
        lines = [f"stop token {token}: {', '.join(token.origins)}" for token in self.tokens]
        return lines if self.closing else [*lines, f"WARNING: {NEVER_CLOSES}"]


def stops_of(
    directory: Path | None, tokenizer: "ChatTokenizer", own: Sequence[str | int] = ()
) -> Stops:
    """Return the stop tokens of the model of ``directory``; None: it has no files yet.

    They are the tokenizer's EOS, the token with which its chat template closes an assistant turn,
    ``eos_token_id`` of generation_config.json and of config.json, and ``own``, the recipe's
    ``model.stop_tokens``. Ids of files that the model has no logit for cannot be sampled and are
    left out. Raises UserError for an ``eos_token_id`` that is no token id, and for one of ``own``
    that is not one token.
    """
    listed, vocab_size = _listed(directory) if directory is not None else ([], None)
    found = {eos_token_id(tokenizer): ["the tokenizer's eos_token"]}
    closing = closing_token(tokenizer)
    if closing is not None:
        closing_id = tokenizer.convert_tokens_to_ids(closing)
        assert isinstance(closing_id, int), f"{closing!r} is one token"
        origin = "the chat template's end of an assistant turn"
        found.setdefault(closing_id, []).append(origin)
    for token, name in listed:
        if vocab_size is None or token < vocab_size:
            found.setdefault(token, []).append(f"eos_token_id of {name}")
    for index, token in enumerate(own):
        one = _own_token(token, f"model.stop_tokens[{index}]", tokenizer, vocab_size)
        found.setdefault(one, []).append("model.stop_tokens")
    return Stops(
        tuple(
            StopToken(token, str(tokenizer.decode([token])), tuple(dict.fromkeys(origins)))
            for token, origins in found.items()
        ),
        closing,
    )


def record_stops(directory: Path, stops: Stops) -> None:
    """Let generation_config.json of ``directory`` list all of ``stops``, as whoever samples from it
    elsewhere reads them there. A model with one stop token is left as it is."""
    values = read_generation(directory)
    before = values.get("eos_token_id")
    values["eos_token_id"] = stops.added_to(before)
    if values["eos_token_id"] != before:
        write_json(directory / GENERATION, values)


def closing_token(tokenizer: "ChatTokenizer") -> str | None:
    """Return the text of the token with which the chat template closes an assistant turn; None
    where it writes none.

    That is what follows the answer whether or not another turn follows: there EOS, else the last
    added token (Phi-3 writes "<|end|>", and EOS at the end of a chat alone). Where nothing does,
    what ends a chat. A template that refuses the chat cannot be asked, and EOS is taken.
    """
    eos = str(tokenizer.eos_token)
    try:
        last = _behind_answer(tokenizer, OPENING)
    except TEMPLATE_ERRORS:
        return eos
    try:
        followed = _behind_answer(tokenizer, [*OPENING, OPENING[0]])
        pairs = enumerate(zip(last, followed, strict=False))
        always = last[: next((at for at, (a, b) in pairs if a != b), len(followed))]
    except TEMPLATE_ERRORS:
        always = last
    added = [token.content for token in tokenizer.added_tokens_decoder.values()]
    tokens = {*special_tokens(tokenizer), *(text for text in added if text.strip())}
    for text in (always, last):
        if eos in text:
            return eos
        if there := [token for token in tokens if token in text]:
            return max(there, key=lambda token: (text.rfind(token) + len(token), len(token)))
    return None


def closing_or_eos(tokenizer: "ChatTokenizer") -> str:
    """Return the text that ends a turn which is to be learnt or followed by another; EOS where the
    template writes none, which its callers then do not find."""
    return closing_token(tokenizer) or str(tokenizer.eos_token)


def _behind_answer(tokenizer: "ChatTokenizer", chat: Sequence[Mapping[str, str]]) -> str:
    text = tokenizer.apply_chat_template([dict(one) for one in chat], tokenize=False)
    return str(text).partition(PLACEHOLDER)[2]


def _listed(directory: Path) -> tuple[list[tuple[int, str]], int | None]:
    """Return the ids that the files of ``directory`` call ends, each with the file's name, and the
    size of the vocabulary. Models of images and text keep both in their ``text_config``."""
    config = read_config(directory)
    text = config.get("text_config")
    config = {**(text if isinstance(text, dict) else {}), **config}
    found = [
        (token, name)
        for name, values in ((GENERATION, read_generation(directory)), ("config.json", config))
        for token in _token_ids(values.get("eos_token_id"), directory / name)
    ]
    return found, config.get("vocab_size")


def _token_ids(value: Any, file: Path) -> list[int]:
    """Return ``eos_token_id`` of a file as a list; it may be none, one or several."""
    ids = _as_list(value)
    for one in ids:
        if not isinstance(one, int) or isinstance(one, bool) or one < 0:
            raise UserError(
                f"{file} has eos_token_id = {value!r}, and a token id is an integer of 0 or more;"
                " correct it, or fetch the model again"
            )
    return ids


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def check_id(token: int, path: str, size: int) -> None:
    """Raise ``UserError`` for the id ``token`` of the key ``path`` that is none of ``size``."""
    if not 0 <= token < size:
        raise UserError(
            f"{path} = {token} is no token of the model, which has the ids 0 to {size - 1}; give"
            " one of them, or the token's text"
        )


def _own_token(
    token: str | int, path: str, tokenizer: "ChatTokenizer", vocab_size: int | None
) -> int:
    size = len(tokenizer) if vocab_size is None else min(vocab_size, len(tokenizer))
    if isinstance(token, int):
        check_id(token, path, size)
        return token
    known = tokenizer.get_vocab().get(token)
    ids = list(tokenizer.encode(token, add_special_tokens=False)) if known is None else [known]
    if len(ids) != 1 or ids[0] >= size:
        raise UserError(
            f"{path} = {token!r} is {len(ids)} tokens of the model, and a stop token is one; write"
            " it into rl.rollout.stop, which takes any text"
        )
    return ids[0]
