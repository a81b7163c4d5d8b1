"""How the responses to a prompt are ranked: by the verdicts of the verifier, by the scores of one
function of the reward, or by a judge that compares them in pairs."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from rlcore.rewards.pairs import Comparison, Pair
from rlcore.rewards.types import Reward, RewardRow, is_finished, prompt_text
from rlcore.rewards.unscored_rows import check_unscored
from rlcore.rollout.episodes import score
from rlcore.rollout.trajectories import Trajectory
from schemas.errors import UserError
from schemas.outcomes import LEVELS, Outcome
from schemas.rl import RewardSection

RANKS = {level: rank for rank, level in enumerate(LEVELS, start=1)}  # a verifier's ranking
Scorer = Callable[[list[RewardRow]], list[Reward]]
ROWS = "sampled responses"


@dataclass(frozen=True, slots=True)
class Place:
    """The rank of a response among those to its prompt, 1 the best; or why it is ``left_out``.

    ``level``: a verifier's. ``verdicts``: of judges, as a column of the tables holds them.
    """

    rank: int = 0
    level: str | None = None
    verdicts: str | None = None
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class Ranking:
    """A place per response, in order. ``pairs``: how many pairs a judge compared (``compared``),
    gave the other winner when they were swapped (``contradicted``, which are ties), found as good
    as each other (``tied``), gave no verdict on (``unscorable``), and how many stand in another
    order by all pairs of their prompt than by their own (``overruled``)."""

    places: Sequence[Place]
    pairs: Mapping[str, int] = field(default_factory=dict)


def level_of(reward: Reward) -> str:
    """Return the level that follows from a verdict, or why there is none: "aborted", "unscorable",
    "unjudged"."""
    if reward.outcome == Outcome.ABORTED:
        return "aborted"
    if reward.correct is None:
        return "unscorable" if _failure(reward) else "unjudged"
    if reward.correct:
        return "correct"
    return "malformed" if reward.outcome == Outcome.NO_ANSWER else "wrong"


def _failure(reward: Reward) -> tuple[str, str] | None:
    """Return outcome and detail of a response without a verdict. Ranking needs verdicts, so here
    the failure of a function of weight 0 counts too."""
    if reward.score is None:
        return reward.outcome, reward.detail
    if reward.correct is None and reward.failures:
        failure = next(iter(reward.failures.values()))
        return failure.outcome, failure.detail
    return None


def by_verdict(
    trajectories: Sequence[Trajectory], scorer: Scorer, section: RewardSection
) -> Ranking:
    """Rank by correctness: correct, wrong, malformed.

    Raises ``UserError`` where no function checked it, RewardFailureError when more responses have
    no verdict than ``section`` allows.
    """
    rewards = score(trajectories, scorer)
    levels = [level_of(reward) for reward in rewards]
    failures = [_failure(reward) or (Outcome.OK, "") for reward in rewards]
    check_unscored(failures, section, rows=ROWS)
    unjudged = levels.count("unjudged")
    if unjudged:
        raise UserError(
            f"reward.functions do not judge the correctness of {unjudged} of {len(levels)} sampled"
            " responses, by which reward_model.preferences of kind 'samples' rank them; add a"
            " function that does, of weight 0 if it is not to be trained on"
        )
    return Ranking(
        [
            Place(RANKS[level], level, reward.verdicts_json)
            if level in RANKS
            else Place(left_out=level)
            for level, reward in zip(levels, rewards, strict=True)
        ]
    )


def by_score(
    trajectories: Sequence[Trajectory], scorer: Scorer, section: RewardSection, term: str
) -> Ranking:
    """Rank by what the function of the reward named ``term`` gives, the highest first.

    Raises RewardFailureError when it scored fewer responses than ``section`` allows.
    """
    rewards = score(trajectories, scorer)
    check_unscored([_why(reward, term) for reward in rewards], section, rows=ROWS)
    places = [Place()] * len(rewards)
    for group in _by_prompt(trajectories):
        worth: dict[str, float | None] = {}  # of equal texts the first's: models round by place
        for number in group:
            worth.setdefault(trajectories[number].text, rewards[number].parts.get(term))
        ranks = _ranks([worth[trajectories[number].text] for number in group])
        for number, rank in zip(group, ranks, strict=True):
            reward = rewards[number]
            lost = "aborted" if reward.outcome == Outcome.ABORTED else "unscorable"
            left_out = "" if rank and lost != "aborted" else lost
            places[number] = Place(rank, verdicts=reward.verdicts_json, left_out=left_out)
    return Ranking(places)


def by_judge(
    trajectories: Sequence[Trajectory],
    judge: str,
    compare: Callable[[Sequence[Pair]], Sequence[Comparison]],
) -> Ranking:
    """Rank by what each response is worth on average in its pairs with the others to its prompt, as
    ``compare`` says of the judge of that name; a pair without a verdict counts for neither.

    The mean orders transitive verdicts as they are, and ties what they turn in a circle.
    """
    whole = [is_finished(trajectory.reward_row()) for trajectory in trajectories]
    groups = [[i for i in group if whole[i]] for group in _by_prompt(trajectories)]
    matches = [match for group in groups for match in combinations(group, 2)]
    found = compare([_pair(trajectories[one], trajectories[other]) for one, other in matches])
    won: dict[int, list[float]] = {number: [] for group in groups for number in group}
    said: dict[int, dict[str, Any]] = {number: {} for number in won}
    for (one, other), comparison in zip(matches, found, strict=True):
        for first, second, verdict in zip(
            (one, other), (other, one), comparison.verdicts, strict=True
        ):
            if verdict:
                said[first][f"{trajectories[second].request.sample}/{judge}"] = verdict
        if comparison.value is not None:
            won[one].append(comparison.value)
            won[other].append(1.0 - comparison.value)
    places = [Place(left_out="aborted")] * len(trajectories)
    for group in groups:
        means = [sum(won[i]) / len(won[i]) if won[i] else None for i in group]
        for number, rank in zip(group, _ranks(means), strict=True):
            verdicts = json.dumps(said[number], sort_keys=True) if said[number] else None
            places[number] = Place(rank, verdicts=verdicts, left_out="" if rank else "unscorable")
    return Ranking(places, _pair_counts(matches, found, places))


def _pair(one: Trajectory, other: Trajectory) -> Pair:
    prompt = one.request.prompt
    return Pair(prompt_text(prompt["prompt"]), prompt["ground_truth"], one.text, other.text)


def _pair_counts(
    matches: Sequence[tuple[int, int]], found: Sequence[Comparison], places: Sequence[Place]
) -> dict[str, int]:
    names = ("compared", "contradicted", "tied", "unscorable", "overruled")
    counts: dict[str, int] = dict.fromkeys(names, 0)
    for (one, other), comparison in zip(matches, found, strict=True):
        value, apart = comparison.value, places[one].rank - places[other].rank
        counts["compared"] += 1
        if value is None:
            counts["unscorable"] += 1
        elif value == 0.5:
            flipped = comparison.before != comparison.after
            counts["contradicted" if flipped else "tied"] += 1
        elif (apart > 0) == (value > 0.5) and apart:
            counts["overruled"] += 1
    return counts


def _ranks(values: Sequence[float | None]) -> list[int]:
    """Return the rank of each value among those of a prompt, 1 the highest and equal ones alike; 0
    for None."""
    known = sorted({round(value, 9) for value in values if value is not None}, reverse=True)
    return [0 if value is None else 1 + known.index(round(value, 9)) for value in values]


def _by_prompt(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for number, trajectory in enumerate(trajectories):
        groups.setdefault(trajectory.request.prompt["uid"], []).append(number)
    return list(groups.values())


def _why(reward: Reward, term: str) -> tuple[str, str]:
    """Return outcome and detail of a response, those of the function ``term`` where it failed."""
    if term in reward.parts and reward.outcome != Outcome.ABORTED:
        return Outcome.OK, ""
    if term in reward.failures:
        return reward.failures[term].outcome, reward.failures[term].detail
    if reward.score is None:
        return reward.outcome, reward.detail
    return Outcome.ERROR, f"{term} does not score it"
