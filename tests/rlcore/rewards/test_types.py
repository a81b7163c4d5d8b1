"""What the engine gave up on is not the policy's fault, and every row gets its own reward."""

import pytest

from rlcore.rewards.types import Reward, RewardRow, prompt_text, score_finished


def row(name: str, finish: str = "stop", num_tokens: int = 3) -> RewardRow:
    return RewardRow(name, "s", f"said by {name}", None, {}, finish, num_tokens)


def score(rows: list[RewardRow]) -> list[Reward]:
    return [Reward(row.trajectory_id, "ok", float(len(rows)), detail=row.response) for row in rows]


def test_aborted_rows_have_no_score_and_the_others_their_own() -> None:
    rows = [row("a", "abort"), row("b"), row("c", "stop", 0), row("d", "length"), row("b")]
    found = score_finished(rows, score)
    assert [(r.trajectory_id, r.outcome, r.score) for r in found] == [
        ("a", "aborted", None),
        ("b", "ok", 3.0),
        ("c", "aborted", None),
        ("d", "ok", 3.0),
        ("b", "ok", 3.0),
    ]
    assert found[3].detail == "said by d"


@pytest.mark.parametrize("rows", [[], [row("a", "abort")]])
def test_without_a_finished_row_nobody_is_asked(rows: list[RewardRow]) -> None:
    """A judge behind a network costs money also for nothing."""

    def fail(rows: list[RewardRow]) -> list[Reward]:
        raise AssertionError("asked")

    assert len(score_finished(rows, fail)) == len(rows)


def test_the_text_of_a_prompt_is_its_messages_by_line() -> None:
    assert prompt_text([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]) == (
        "a\nb"
    )
