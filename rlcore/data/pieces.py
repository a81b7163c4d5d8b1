"""Texts -> token ids by the pieces that a byte-level tokenizer cuts them into, each encoded once.

A byte-level BPE cuts a text by a pattern and encodes every piece by itself, so a text's ids are
those of its pieces, joined. Most pieces of a corpus are words that were encoded before: looking
them up takes a fifth of the time of cutting and encoding them anew. This holds for the tokenizers
whose pattern is known here, for texts of ASCII, on which Python's ``re`` cuts as the tokenizer's
own regular expressions do; all else is encoded by the tokenizer.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from rlcore.models.tokenizer import tokenizer_file

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

BATCH = 4096  # texts that are encoded in one call, which holds all that the tokenizer says of them
MANY = 1024  # texts from which reading how the tokenizer cuts (its whole vocabulary) pays
HELD = 2**18  # pieces, some 200 bytes each
TRIED = 64  # texts of each batch's beginning that the tokenizer encodes too, until so many agreed

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# As they stand in tokenizer.json: Qwen 2 to 3; Llama 3 and GPT-4; and of ByteLevel's own, GPT-2.
QWEN = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
LLAMA = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UNCHANGED = (None, "NFC", "NFD", "NFKC", "NFKD")  # normalizers that leave ASCII as it is

Cut = Callable[[str], list[str]]

_of_tokenizer: "WeakKeyDictionary[ChatTokenizer, tuple[int, Pieces | None]]" = WeakKeyDictionary()


def encode_texts(tokenizer: "ChatTokenizer", texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text, as ``tokenizer`` gives them without special tokens."""
    pieces = _pieces_of(tokenizer) if len(texts) >= MANY else None
    if pieces is None:
        return _plain(tokenizer, texts)
    ids: list[list[int]] = []
    for start in range(0, len(texts), BATCH):
        ids += pieces.encode(tokenizer, texts[start : start + BATCH])
    return ids


class Pieces:
    """The pieces of texts of one tokenizer, and the ids of those that were seen."""

    def __init__(self, cut: Cut) -> None:
        """``cut``: ASCII text -> its pieces."""
        self._cut = cut
        self._known: dict[str, list[int]] = {}
        self._left_to_try = TRIED
        self._is_wrong = False

    def encode(self, tokenizer: "ChatTokenizer", texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text; ``tokenizer``: always that of ``cut``."""
        if self._is_wrong:
            return _plain(tokenizer, texts)
        found: list[list[int] | None] = [None] * len(texts)
        cuts: dict[int, list[str]] = {}
        ids_of = self._known.__getitem__
        for position, text in enumerate(texts):
            if text.isascii():
                cut = self._cut(text)
                try:
                    found[position] = [*chain.from_iterable(map(ids_of, cut))]
                except KeyError:
                    cuts[position] = cut
        self._learn(tokenizer, {piece for cut in cuts.values() for piece in cut})
        for position, cut in cuts.items():
            if all(piece in self._known for piece in cut):
                found[position] = [*chain.from_iterable(map(ids_of, cut))]
        others = [position for position, ids in enumerate(found) if ids is None]
        for position, ids in zip(
            others, _plain(tokenizer, [texts[i] for i in others]), strict=True
        ):
            found[position] = ids
        return self._tried(tokenizer, texts, [ids for ids in found if ids is not None])

    def _learn(self, tokenizer: "ChatTokenizer", pieces: set[str]) -> None:
        new = sorted(pieces - self._known.keys())
        if len(self._known) + len(new) > HELD:
            self._known.clear()
            new = sorted(pieces)[:HELD]
        # One that is cut further where it stands alone would not be one piece for the tokenizer.
        new = [piece for piece in new if self._cut(piece) == [piece]]
        self._known.update(zip(new, _plain(tokenizer, new), strict=True))

    def _tried(
        self, tokenizer: "ChatTokenizer", texts: Sequence[str], ids: list[list[int]]
    ) -> list[list[int]]:
        """Return ``ids``, or all of the tokenizer where the first differ from its own: how it cuts
        is read from its file, and a sample says whether its code does so too."""
        count = min(self._left_to_try, len(texts))
        self._left_to_try -= count
        if _plain(tokenizer, texts[:count]) != ids[:count]:
            self._is_wrong = True
            return _plain(tokenizer, texts)
        return ids


def _pieces_of(tokenizer: "ChatTokenizer") -> Pieces | None:
    held = _of_tokenizer.get(tokenizer)
    if held is None or held[0] != len(tokenizer):  # tokens were added to it
        cut = _cutter(tokenizer)
        held = _of_tokenizer[tokenizer] = (len(tokenizer), None if cut is None else Pieces(cut))
    return held[1]


def _plain(tokenizer: "ChatTokenizer", texts: Sequence[str]) -> list[list[int]]:
    if not texts:
        return []
    encoded = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)
    return encoded["input_ids"]


def _cutter(tokenizer: "ChatTokenizer") -> Cut | None:
    """Return what cuts ASCII as ``tokenizer`` does; None where that is not known."""
    parts = tokenizer_file(tokenizer)
    if parts is None or not _is_of_pieces(parts):
        return None
    pattern, added = _pattern_of(parts), parts["added_tokens"]
    if (
        pattern is None
        or len({token["normalized"] for token in added}) > 1
        or any(token[key] for token in added for key in ("single_word", "lstrip", "rstrip"))
    ):
        return None
    for theirs, ours in (
        (r"^\r\n\p{L}\p{N}", r"^\r\nA-Za-z0-9"),
        (r"^\s\p{L}\p{N}", r"^\sA-Za-z0-9"),
    ):
        pattern = pattern.replace(theirs, ours)
    pattern = pattern.replace(r"\p{L}", "[A-Za-z]").replace(r"\p{N}", "[0-9]")
    find = re.compile(pattern, re.ASCII).findall
    # Added tokens are found first, the leftmost and of those the longest, and each rest cut alone.
    names = sorted((token["content"] for token in added), key=lambda name: (-len(name), name))
    if not names:
        return find
    split = re.compile(f"({'|'.join(map(re.escape, names))})").split

    def cut(text: str) -> list[str]:
        pieces: list[str] = []
        for position, part in enumerate(split(text)):
            if position % 2:
                pieces.append(part)
            elif part:
                pieces += find(part)
        return pieces

    return cut


def _pattern_of(parts: dict[str, Any]) -> str | None:
    """Return the regular expression of a tokenizer.json that cuts before the bytes are encoded."""
    steps = parts["pre_tokenizer"] or {}
    steps = steps["pretokenizers"] if steps.get("type") == "Sequence" else [steps]
    last = steps[-1]
    if last.get("type") != "ByteLevel" or last["add_prefix_space"]:
        return None
    if len(steps) == 1:
        return GPT2 if last["use_regex"] else None
    split = steps[0]
    if len(steps) > 2 or last["use_regex"] or split["type"] != "Split":
        return None
    pattern = split["pattern"].get("Regex")
    isolated = split["behavior"] == "Isolated" and not split["invert"]
    return pattern if isolated and pattern in (QWEN, LLAMA) else None


def _is_of_pieces(parts: dict[str, Any]) -> bool:
    """Whether ASCII reaches the BPE as it stands, and a piece is always encoded alike."""
    model, normalizer = parts["model"], parts["normalizer"]
    return (
        model["type"] == "BPE"
        and not model["dropout"]
        and (normalizer and normalizer["type"]) in _UNCHANGED
    )
