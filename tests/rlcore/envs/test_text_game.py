import pytest

from rlcore.envs.text_game import TextGame


@pytest.mark.parametrize("seed", range(20))
def test_every_game_can_be_won_and_wasted_turns_cost(seed: int) -> None:
    straight, wasted = TextGame(mistakes=0), TextGame(mistakes=0.5)
    assert len(straight.demonstration(seed)) <= len(wasted.demonstration(seed))
    game = TextGame()
    game.reset({}, seed)
    steps = [
        game.step(m["content"]) for m in straight.demonstration(seed) if m["role"] == "assistant"
    ]
    assert [step.done for step in steps] == [*[False] * (len(steps) - 1), True]
    assert sum(step.reward for step in steps) == pytest.approx(1 - 0.02 * len(steps))


def test_the_door_needs_the_key() -> None:
    game = TextGame(rooms=1)
    game.reset({}, 0)
    assert not game.step("open").done
    game.step("take")
    assert game.step("open").done


def test_anything_else_is_invalid_and_changes_nothing() -> None:
    game = TextGame(rooms=1)
    view = game.reset({}, 0).messages[0]["content"].partition(". ")[2]
    step = game.step("open\nopen")
    assert not step.valid
    assert step.messages[0]["content"].endswith(view)


def test_equal_seeds_begin_alike_and_others_do_not() -> None:
    views = [TextGame().reset({}, seed).messages[0]["content"] for seed in (1, 1, 2)]
    assert views[0] == views[1] != views[2]
