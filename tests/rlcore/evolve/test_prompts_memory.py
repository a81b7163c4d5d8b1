"""The vote and the order of the memory, against tables worked by hand."""

import pytest

from rlcore.evolve.prompts import Entry, best, report_of, vote


def entry(number: int, score: int, length: int) -> Entry:
    return Entry(number, f"s{number}", f"r{number}", score, length)


@pytest.mark.parametrize(
    ("verdicts", "decision"),
    [([1], 1), ([0], 0), ([1, 1, 0], 1), ([1, 0, 0], 0), ([1, 0], 0), ([1, 1, 0, 0], 0), ([], 0)],
)
def test_more_than_half_accept_and_a_tie_rejects(verdicts: list[int], decision: int) -> None:
    assert vote(verdicts) == decision


def test_the_report_is_of_the_first_that_agrees_with_the_vote() -> None:
    assert report_of([0, 1, 1], ["no", "yes", "also"]) == "yes"
    assert report_of([0, 1, 0], [None, "yes", "no"]) == "no", "who could not be read says nothing"
    assert report_of([0, 0, 1], [None, None, "yes"]) == ""


# round, score, length; then ranks by score and by length, and their sum
HAND_WORKED = [
    (1, 1, 90),  # 0 + 4 = 4
    (2, 0, 10),  # 3 + 0 = 3
    (3, 1, 40),  # 0 + 2 = 2
    (4, 0, 20),  # 3 + 1 = 4
    (5, 1, 40),  # 0 + 2 = 2, as round 3, and later
]


@pytest.mark.parametrize(("count", "rounds"), [(0, []), (3, [5, 3, 2]), (9, [5, 3, 2, 1, 4])])
def test_the_memory_is_ordered_by_the_sum_of_ranks(count: int, rounds: list[int]) -> None:
    """Of equal sums (rounds 1 and 4) the higher score is first, then (5 and 3) the later round."""
    entries = [entry(*row) for row in HAND_WORKED]
    assert [one.round for one in best(entries, count)] == rounds
    assert [one.round for one in best(entries[::-1], count)] == rounds, "not by their order"


def test_equal_values_share_a_rank() -> None:
    """Ranks 0, 0, 2 by score: the rejected one is worse than both that were accepted."""
    entries = [entry(1, 1, 30), entry(2, 1, 20), entry(3, 0, 10)]
    # sums: 0 + 2, 0 + 1, 2 + 0
    assert [one.round for one in best(entries, 3)] == [2, 1, 3]
