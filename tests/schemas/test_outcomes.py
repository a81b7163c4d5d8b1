"""How a generation ended decides how its episode did."""

import pytest

from schemas.outcomes import FinishReason, StopReason


@pytest.mark.parametrize(
    ("generation", "episode"),
    [("stop", "done"), ("length", "length"), ("abort", "abort")],
)
def test_an_answer_that_stopped_by_itself_is_done(generation: str, episode: str) -> None:
    """Cut off taken for done, a truncated answer would be judged and trained on as a whole one."""
    assert StopReason.of_single_turn(FinishReason(generation)) == episode


def test_every_way_a_generation_ends_is_one_that_an_episode_can_end() -> None:
    assert {StopReason.of_single_turn(reason) for reason in FinishReason} == set(StopReason)
