"""Rankings without a verifier: by a score, or by a judge's verdicts on pairs in both orders."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from rlcore.engines.types import Generation
from rlcore.rewards.pairs import Comparison, Pair
from rlcore.rewards.types import Failure, Reward, RewardRow
from rlcore.rewards.unscored_rows import RewardFailureError
from rlcore.rollout.trajectories import Request, Trajectory, Turn
from rlcore.supervised.ranking import Ranking, by_judge, by_score
from schemas.outcomes import FinishReason, StopReason
from schemas.rl import RewardFunction, RewardSection
from tests.rlcore.rollout.scripted import STAMP

REWARD = RewardSection(functions=(RewardFunction(name="taste.py:taste"),))


def trajectories(*prompts: Sequence[str], aborted: str = "") -> list[Trajectory]:
    """Return responses to prompts p0, p1, ..."""
    made = []
    for number, responses in enumerate(prompts):
        prompt: dict[str, Any] = {
            "uid": f"p{number}",
            "data_source": "s",
            "prompt": [{"role": "user", "content": f"question {number}"}],
            "prompt_ids": [1],
            "ground_truth": None,
            "reward_style": "judge",
            "extra_info": "{}",
        }
        for sample, text in enumerate(responses):
            request = Request(f"p{number}-{sample}", prompt, sample, 0)
            end = FinishReason.ABORT if text == aborted else FinishReason.STOP
            turn = Turn(Generation([2], [0.0], end, STAMP))
            made.append(Trajectory(request, (turn,), text, StopReason.DONE))
    return made


def judged(value: Callable[[str, str], tuple[float | None, float | None]]) -> Any:
    def compare(pairs: Sequence[Pair]) -> list[Comparison]:
        said = {"question": "q", "answer": "a", "choice": "A", "run": "r"}
        found = [value(pair.first, pair.second) for pair in pairs]
        return [Comparison(*each, verdicts=(said, said)) for each in found]

    return compare


def ranks(ranking: Ranking) -> list[int]:
    return [place.rank for place in ranking.places]


def longer(first: str, second: str) -> tuple[float, float]:
    value = 0.5 + 0.5 * np.sign(len(first) - len(second))
    return value, value


def test_verdicts_in_an_order_rank_in_it_and_ties_stay() -> None:
    found = by_judge(trajectories(["aa", "a", "aaaa", "bb"], ["a", "b"]), "j", judged(longer))
    assert ranks(found) == [2, 3, 1, 2, 1, 1]
    assert found.pairs == {
        "compared": 7,
        "contradicted": 0,
        "tied": 2,
        "unscorable": 0,
        "overruled": 0,
    }


def test_each_verdict_is_kept_once_under_the_response_that_was_read_first() -> None:
    """The cache of a lost disk is made again from them."""
    found = by_judge(trajectories(["aa", "a", "aaa"]), "j", judged(longer))
    kept = [sorted(json.loads(place.verdicts or "")) for place in found.places]
    assert kept == [["1/j", "2/j"], ["0/j", "2/j"], ["0/j", "1/j"]]


def test_what_the_order_decides_is_a_tie_and_counted() -> None:
    found = by_judge(trajectories(["aa", "a", "aaa"]), "j", judged(lambda *_: (1.0, 0.0)))
    assert ranks(found) == [1, 1, 1]
    assert found.pairs["contradicted"] == found.pairs["compared"] == 3


def test_a_circle_is_a_tie_and_an_overruled_pair_is_counted() -> None:
    beats = {("a", "b"), ("b", "c"), ("c", "a")}

    def circle(first: str, second: str) -> tuple[float, float]:
        value = float((first, second) in beats)
        return value, value

    assert ranks(by_judge(trajectories(["a", "b", "c"]), "j", judged(circle))) == [1, 1, 1]
    beats |= {("a", "d"), ("b", "d"), ("d", "c"), ("a", "e"), ("b", "e"), ("e", "c"), ("d", "e")}
    found = by_judge(trajectories(["a", "b", "c", "d", "e"]), "j", judged(circle))
    assert ranks(found) == [1, 1, 3, 2, 3]
    assert found.pairs["overruled"] == 1, "c won against a"


def test_a_pair_without_a_verdict_counts_for_neither() -> None:
    def lost(first: str, second: str) -> tuple[float | None, float]:
        return (None, 1.0) if {first, second} == {"a", "aaa"} else longer(first, second)

    found = by_judge(trajectories(["aa", "a", "aaa"]), "j", judged(lost))
    assert ranks(found) == [2, 3, 1]
    assert found.pairs["unscorable"] == 1
    found = by_judge(trajectories(["aa", "a"]), "j", judged(lambda *_: (None, None)))
    assert [place.left_out for place in found.places] == ["unscorable"] * 2


def test_an_aborted_response_is_not_asked_about() -> None:
    found = by_judge(trajectories(["aa", "a", "x"], aborted="x"), "j", judged(longer))
    assert [place.left_out for place in found.places] == ["", "", "aborted"]
    assert found.pairs["compared"] == 1


@pytest.mark.parametrize("noise", [0.1, 0.2])
def test_rankings_are_closer_to_the_taste_than_the_judge(noise: float) -> None:
    """Each answer of the judge is wrong with probability ``noise``."""
    rng = np.random.default_rng(0)

    def noisy(first: str, second: str) -> tuple[float, float]:
        true, wrong = len(first) > len(second), rng.random(2) < noise
        return float(true ^ wrong[0]), float(true ^ wrong[1])

    texts = ["a" * n for n in range(1, 7)]
    found = by_judge(trajectories(*[texts] * 200), "j", judged(noisy))
    table = np.array(ranks(found)).reshape(200, 6)
    one, other = np.triu_indices(6, 1)
    right = table[:, one] > table[:, other]
    assert right.mean() > 1 - noise


def scores(rows: list[RewardRow]) -> list[Reward]:
    return [
        Reward(row.trajectory_id, "error", None, detail="no score")
        if row.response == "?"
        else Reward(row.trajectory_id, "ok", 0.0, parts={"taste.py:taste": float(row.response)})
        for row in rows
    ]


def test_a_score_ranks_and_equal_ones_are_ties() -> None:
    found = by_score(trajectories(["1", "3", "2", "3"], ["0"]), scores, REWARD, "taste.py:taste")
    assert ranks(found) == [3, 1, 2, 1, 1]


def test_equal_texts_rank_alike_whatever_a_model_rounds() -> None:
    def rounds(rows: list[RewardRow]) -> list[Reward]:
        return [
            Reward(row.trajectory_id, "ok", 0.0, parts={"m": 1.0 + 1e-4 * number})
            for number, row in enumerate(rows)
        ]

    assert ranks(by_score(trajectories(["a", "b", "a"]), rounds, REWARD, "m")) == [2, 1, 2]


def test_what_has_no_score_is_left_out_or_ends_the_stage() -> None:
    some = REWARD.model_copy(update={"max_error_fraction": 0.5})
    given = trajectories(["1", "?", "x"], aborted="x")
    found = by_score(given[:2], scores, some, "taste.py:taste")
    assert [place.left_out for place in found.places] == ["", "unscorable"]
    some = REWARD.model_copy(update={"max_error_fraction": 1.0})
    found = by_score(given, scores, some, "taste.py:taste")
    assert [place.left_out for place in found.places] == ["", "unscorable", "aborted"]
    with pytest.raises(RewardFailureError, match="1 of 2 sampled responses could not be scored"):
        by_score(given[:2], scores, REWARD, "taste.py:taste")
    with pytest.raises(RewardFailureError, match="other does not score it"):
        by_score(given[:1], scores, REWARD, "other")


def test_a_function_of_weight_zero_that_fails_says_why() -> None:
    def failed(rows: list[RewardRow]) -> list[Reward]:
        why = {"t": Failure("timeout", "slow")}
        return [Reward(row.trajectory_id, "ok", 0.0, failures=why) for row in rows]

    with pytest.raises(RewardFailureError, match="timeout: slow"):
        by_score(trajectories(["1"]), failed, REWARD, "t")
