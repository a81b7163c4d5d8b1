"""The fast part of the benchmark of rewards: verdicts, not times."""

from collections import Counter

import pytest

from rlcore.rewards import gsm8k, math_answer
from rlcore.rewards.types import Scorer
from tests.bench.rewards import KINDS, PAIRS, SOLUTIONS, disagreed, misjudged, paid, read_pairs
from tests.inputs import reads


@reads(SOLUTIONS)
@pytest.mark.parametrize("scorer", [gsm8k.scorer("numeric"), math_answer.scorer()])
def test_the_published_flags_of_real_solutions_are_met(scorer: Scorer) -> None:
    """5,276 solutions of four models, as their authors judged them."""
    assert disagreed(scorer) == []


@pytest.mark.slow
def test_no_wrong_answer_is_paid_and_nearly_every_right_one() -> None:
    pairs = read_pairs()
    assert len(pairs) >= 300
    counts = Counter(pair.kind for pair in pairs)
    assert set(counts) == set(KINDS)
    assert min(counts.values()) >= 20
    for file in ("own.jsonl", "outside.jsonl"):
        assert len((PAIRS / file).read_text(encoding="utf-8").splitlines()) >= 150
    assert all(pair.answer != pair.truth for pair in pairs), "equal texts prove nothing"
    verdicts = [(pair, paid(pair)) for pair in pairs]
    assert [pair for pair, verdict in verdicts if verdict and not pair.right] == []
    unpaid = [pair for pair, verdict in verdicts if pair.right and not verdict]
    assert len(unpaid) <= 0.02 * sum(pair.right for pair in pairs), unpaid


@pytest.mark.slow
@pytest.mark.parametrize("name", ["math", "gsm8k"])
def test_the_verdicts_are_those_of_a_careful_mathematician(name: str) -> None:
    """Of tables that were written before the code, by somebody who had not seen it."""
    paid_wrong, refused, wrong, right = misjudged(name)
    assert paid_wrong == []
    assert len(refused) <= 0.02 * right, refused
    assert wrong + right >= 250
