"""A user's class: refused before the run when it is no engine, and checked in every answer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlcore.engines.own_engine import OwnEngine, find_engine
from rlcore.engines.types import EngineSpec, Generation, Sampling, TurnRequest
from rlcore.models.weight_digest import UNVERIFIED
from schemas.errors import UserError
from schemas.outcomes import FinishReason

METHODS = """
    def __init__(self, spec): self.answers = []
    def generate(self, requests, sampling): return self.answers
    def load_weights(self, update): ...
    def stamp(self): ...
    def probe(self, token_ids): ...
    def close(self): ...
"""
ADVANCES = """
    def advance(self, requests, sampling, wait_s): return self.answers
"""
SPEC = EngineSpec("model")
REQUESTS = [TurnRequest("a/0", [1], 0, 2), TurnRequest("b/0", [1], 0, 2)]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write an engine's file and return its name."""

    def write(body: str, name: str = "Mine") -> str:
        number = len(list(tmp_path.iterdir()))
        path = tmp_path / f"engine_{number}.py"
        path.write_text(f"class Mine:{body}\nSIZE = 3\n")
        return f"{path}:{name}"

    return write


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("def probe(", "def prob(", r"engine_0.py:Mine' lacks probe; an engine has generate, load"),
        ("def close(self): ...", "stamp = 3", r"lacks stamp, close; an engine has"),
        (
            "(self, requests,",
            "(self, prompts, seeds,",
            r"Mine\.generate is called with \(self",
        ),
        ("(self, spec)", "(self)", r"Mine is called with \(spec\) and takes others"),
        ("generate(", "generate(", None),
    ],
)
def test_a_class_that_is_no_engine_is_refused(
    write: Any, old: str, new: str, sentence: str | None
) -> None:
    """In a run it would be found after SFT, by an AttributeError in a worker."""
    assert old in METHODS
    name = write(METHODS.replace(old, new))
    if sentence is None:
        assert find_engine(name).__name__ == "Mine"
        return
    with pytest.raises(UserError, match=rf"^hardware\.rollout\.engine = .*{sentence}"):
        find_engine(name)


def test_what_a_class_inherits_without_having_it_is_missing(write: Any) -> None:
    """The methods of ``RolloutEngine`` return nothing where a subclass has none of its own."""
    parts = METHODS.replace("def stamp(self): ...", "").replace("def close(self): ...", "")
    with pytest.raises(UserError, match="lacks stamp, close; an engine has"):
        find_engine(_inheriting(write(parts)))
    engine = OwnEngine(SPEC, _inheriting(write(METHODS)))
    with pytest.raises(UserError, match="generate returned 0 rows for 2 requests"):
        engine.advance(REQUESTS, Sampling(), 0.0)


def _inheriting(name: str) -> str:
    """Let the class ``name`` be a ``RolloutEngine``."""
    path = Path(name.rpartition(":")[0])
    text = path.read_text().replace("class Mine:", "class Mine(RolloutEngine):")
    path.write_text("from rlcore.engines.types import RolloutEngine\n" + text)
    return name


def test_what_is_no_class_is_refused(write: Any) -> None:
    with pytest.raises(UserError, match="is of type int, not a class"):
        find_engine(write(METHODS, "SIZE"))
    with pytest.raises(UserError, match="has no class Min; did you mean 'Mine'"):
        find_engine(write(METHODS, "Min"))
    with pytest.raises(UserError, match="cannot be imported: ModuleNotFoundError"):
        find_engine("no_such_module_of_anyone:Mine")


def row(tokens: int, logprobs: int) -> Generation:
    return Generation([1] * tokens, [0.0] * logprobs, FinishReason.STOP, UNVERIFIED)


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ([row(2, 2)], "generate returned 1 rows for 2 requests"),
        ([row(2, 2), row(3, 3)], "'b/0', of at most 2 tokens, with 3 tokens and 3 log-probs"),
        ([row(2, 1), row(2, 2)], "'a/0', of at most 2 tokens, with 2 tokens and 1 log-probs"),
        ([row(2, 2), row(0, 0)], "'b/0', of at most 2 tokens, with 0 tokens"),
    ],
)
def test_an_answer_that_is_none_is_refused(write: Any, answers: Any, sentence: str) -> None:
    """It would train on rows of other requests, or on tokens beyond the budget."""
    engine = OwnEngine(SPEC, write(METHODS))
    engine._engine.answers = answers
    for ask in (engine.generate, lambda r, s: engine.advance(r, s, 0.0)):
        with pytest.raises(UserError, match=sentence):
            ask(REQUESTS, Sampling())


def test_what_the_class_leaves_out_is_added(write: Any) -> None:
    engine = OwnEngine(SPEC, write(METHODS))
    engine.begin()
    engine._engine.answers = [row(1, 1), row(2, 2)]
    assert engine.advance(REQUESTS, Sampling(), 0.0) == [("a/0", row(1, 1)), ("b/0", row(2, 2))]
    assert engine.advance([], Sampling(), 0.0) == []


def test_an_answer_to_nothing_is_refused(write: Any) -> None:
    engine = OwnEngine(SPEC, write(METHODS + ADVANCES))
    engine._engine.answers = [("a/0", row(1, 1))]
    assert engine.advance(REQUESTS, Sampling(), 0.0) == [("a/0", row(1, 1))]
    with pytest.raises(UserError, match="advance returned 'a/0', which is not under way"):
        engine.advance([], Sampling(), 0.0)
    engine._engine.answers = [("b/0", row(3, 3))]
    with pytest.raises(UserError, match="'b/0', of at most 2 tokens, with 3 tokens"):
        engine.advance([], Sampling(), 0.0)
