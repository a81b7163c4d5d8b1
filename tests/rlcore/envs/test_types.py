import numpy as np
import pytest

from rlcore.envs.types import Start, Step, as_start, as_step
from schemas.errors import UserError

SAID = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("value", "messages"),
    [(None, []), ("", []), ("hello", SAID), (SAID, SAID), (Start(SAID, "4"), SAID)],
)
def test_reset_may_return_text_messages_or_nothing(value: object, messages: list) -> None:
    assert list(as_start(value).messages) == messages


@pytest.mark.parametrize(
    "value",
    [
        *(5, [5], [{"role": "user"}], [{"role": 1, "content": "a"}]),
        *(Start(SAID, 5), Start(SAID, np.int64(5))),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_reset_may_not_return_is_named(value: object) -> None:
    with pytest.raises(UserError, match=r"reset\(\) returned"):
        as_start(value)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "step.. returned NoneType"),
        (Step(reward=float("nan")), "not a finite number"),
        (Step("hello"), "give a list of"),  # pyright: ignore[reportArgumentType]
        (Step([{"role": "user"}]), "of texts"),
    ],
)
def test_what_step_may_not_return_is_named(value: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        as_step(value)
