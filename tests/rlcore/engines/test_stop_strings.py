"""A stop string ends an answer wherever tokens begin and end, by one rule for all engines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from rlcore.engines.own_engine import OwnEngine
from rlcore.engines.stop_strings import StopStrings, answer_text
from rlcore.engines.types import EngineSpec, Generation, Sampling, TurnRequest
from rlcore.models.tokenizer import train_tokenizer
from rlcore.models.weight_digest import UNVERIFIED
from schemas.errors import UserError
from schemas.outcomes import FinishReason
from tests.rlcore.engines.conftest import VOCAB, requests_of
from tests.rlcore.engines.test_engines import prompts_of

LETTERS = "abcdefghijklmn"
EOS = 1  # of both tokenizers here


def write_pairs(directory: Path) -> PreTrainedTokenizerFast:
    """Write a tokenizer whose token 2 + 14 i + j is the i-th and the j-th letter: no letter has a
    token of its own, so that strings begin and end inside tokens."""
    pairs = [first + second for first in LETTERS for second in LETTERS][: VOCAB - 2]
    vocabulary = {text: place for place, text in enumerate(["<pad>", "<eos>", *pairs])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<pad>", "<eos>")])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>"
    )
    tokenizer.save_pretrained(directory)
    return tokenizer


def first_end(tokenizer: Any, ids: list[int], stops: tuple[str, ...]) -> int | None:
    """How many tokens there are up to the one that completes a stop string, by all their text."""
    for end in range(1, len(ids) + 1):
        if any(stop in tokenizer.decode(ids[:end]) for stop in stops):
            return end
    return None


def test_every_engine_ends_a_row_at_the_same_token(synced: Any) -> None:
    """What follows would be trained, at the price of the longest answer for each of them."""
    tokenizer = write_pairs(Path(synced.spec.model_dir))
    prompts, free = prompts_of(24), Sampling(max_new_tokens=24)
    whole = synced.generate(prompts, range(24), free)
    texts = [str(tokenizer.decode(row.token_ids)) for row in whole]
    stops = (texts[0][21:24], texts[1][10:13], "<eos>")  # odd places: inside tokens
    sampling = Sampling(max_new_tokens=24, stop=stops)
    rows = synced.generate(prompts, range(24), sampling)
    for free_row, row in zip(whole, rows, strict=True):
        end = first_end(tokenizer, free_row.token_ids, stops)
        assert row.token_ids == free_row.token_ids[: end or 24]
        assert row.logprobs == pytest.approx(free_row.logprobs[: end or 24], abs=1e-4)
        assert row.finish_reason == (FinishReason.STOP if end else FinishReason.LENGTH)
        text = answer_text(tokenizer, row, sampling)
        assert not any(stop in text for stop in stops)
        assert str(tokenizer.decode(row.token_ids, skip_special_tokens=True)).startswith(text)
    assert {row.finish_reason for row in rows} == {"stop", "length"}
    requests, done = requests_of(prompts, range(24), sampling), {}
    synced.engine.begin()
    for share in (requests[:9], requests[9:], *([[]] * 24)):
        done |= dict(synced.engine.advance(share, sampling, 0.0))
    assert [done[request.key].token_ids for request in requests] == [r.token_ids for r in rows]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["Tom has 12 eggs and gets 30. How many now?"] * 20, 320)


def generation(ids: list[int], reason: FinishReason = FinishReason.STOP) -> Generation:
    return Generation(ids, [-0.5] * len(ids), reason, UNVERIFIED)


@pytest.mark.parametrize(
    ("said", "stop", "text"),
    [
        ("12 eggs. END", ("END",), "12 eggs. "),
        ("12 eggs", ("ggs",), "12 e"),  # begins inside the token " eggs"
        ("12 eggs", (" egg",), "12"),  # ends inside it
        ("a\n\nb\n\n", ("\n\n",), "a"),
        ("so é!", ("é!",), "so "),  # two bytes, two tokens
        ("so 日本", ("本",), "so 日"),
        ("12<|end|>", ("<|end|>",), "12"),  # a special token by its text
        ("12<|user|>x ##", ("##",), "12x "),  # others are dropped as everywhere
        ("12 ENDING", ("NDI", "END"), "12 "),
        ("END", ("END",), ""),
        ("12 eggs", ("30",), "12 eggs"),
    ],
)
def test_text_is_read_up_to_the_stop_string(
    tokenizer: Any, said: str, stop: tuple[str, ...], text: str
) -> None:
    row = generation(tokenizer(said)["input_ids"])
    assert answer_text(tokenizer, row, Sampling(stop=stop)) == text


def test_only_a_row_that_it_ended_loses_its_last_token(tokenizer: Any) -> None:
    """A stop token of the user's own is no special token, and the reward must not read it."""
    ids = tokenizer("12 30")["input_ids"]
    sampling = Sampling(stop_token_ids=(EOS, ids[-1]))
    assert answer_text(tokenizer, generation(ids), sampling) == "12 3"
    assert answer_text(tokenizer, generation([*ids, EOS]), sampling) == "12 30"
    assert answer_text(tokenizer, generation(ids, FinishReason.LENGTH), Sampling()) == "12 30"


def test_a_users_engine_need_not_know_of_them(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    ids = tokenizer("12 eggs ## more")["input_ids"]
    end = first_end(tokenizer, ids, ("##",))
    engine = OwnEngine(EngineSpec(str(tmp_path)), f"{__name__}:Fixed")
    engine._engine.answers = [generation(ids, FinishReason.LENGTH)]
    request = TurnRequest("a/0", [1], 0, len(ids))
    sampling = Sampling(stop=("##",))
    (row,) = engine.generate([request], sampling)
    assert (row.token_ids, row.finish_reason) == (ids[:end], FinishReason.STOP)
    assert len(row.logprobs) == end
    assert engine.advance([request], sampling, 0.0) == [("a/0", row)]
    assert engine.generate([request], Sampling()) == engine._engine.answers


class Fixed:
    """A user's engine that answers what it was given."""

    answers: list[Generation]

    def __init__(self, spec: EngineSpec) -> None:
        del spec

    def generate(self, requests: Any, sampling: Sampling) -> list[Generation]:
        return self.answers

    load_weights: Callable[[Any, Any], None] = lambda self, update: None
    stamp: Callable[[Any], None] = lambda self: None
    probe: Callable[[Any, Any], None] = lambda self, token_ids: None
    close: Callable[[Any], None] = lambda self: None


def test_a_model_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer of model .* cannot be loaded"):
        StopStrings(str(tmp_path)).complete([[1]], ("##",))
    assert StopStrings(str(tmp_path)).complete([[1]], ()) == [False]
