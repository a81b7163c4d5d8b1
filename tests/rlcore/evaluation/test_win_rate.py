"""Win rates that are right of equal models, and none where the judge is no evidence."""

import numpy as np
import pytest
import torch

from rlcore.evaluation.win_rate import RIDGE, WinFigures, length_controlled, win_figures

PROMPTS = 200


def figures(before: np.ndarray, after: np.ndarray, lengths: np.ndarray | None = None) -> WinFigures:
    lengths = np.zeros(len(before)) if lengths is None else lengths
    return win_figures(before, after, lengths, np.ones(len(before), dtype=bool))


def sigmoid(value: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-value))


def test_ties_are_halves_and_a_contradiction_is_a_tie() -> None:
    found = figures(np.array([1, 0.5, 0, 1.0]), np.array([1, 0.5, 0, 0.0]))
    assert found.rate is not None
    assert found.rate.value == 0.5
    assert found.consistency is not None
    assert found.consistency.value == 0.75
    assert found.first is not None
    assert found.first.value == 0.625


@pytest.mark.parametrize(("prompts", "ties"), [(60, 0.0), (200, 0.3)])
def test_of_equal_models_one_interval_in_twenty_excludes_a_half(prompts: int, ties: float) -> None:
    excluded = 0
    for number in range(500):
        rng = np.random.default_rng(number)
        value = np.where(rng.random(prompts) < ties, 0.5, rng.integers(0, 2, prompts))
        flipped = rng.random(prompts) < 0.1  # a judge that is seldom swayed by the order
        found = win_figures(
            np.where(flipped, 1.0, value),
            np.where(flipped, 0.0, value),
            np.zeros(prompts),
            np.ones(prompts, dtype=bool),
        )
        assert found.rate is not None
        excluded += not found.rate.low <= 0.5 <= found.rate.high
    assert 0.025 <= excluded / 500 <= 0.075


def test_a_judge_that_takes_the_first_answer_gives_no_win_rate_and_is_named() -> None:
    found = figures(np.ones(PROMPTS), np.zeros(PROMPTS))
    assert dict(found.rows()).keys() == {"win_rate/consistency", "win_rate/first"}
    said = found.sentence("taste", "sft")
    assert said.startswith("no win rate over sft: judge 'taste' kept 0% of its verdicts when")
    assert "100% went to the one read first" in said
    assert "take another judge or template" in said


@pytest.mark.parametrize(("kept", "evidence"), [(119, False), (120, True)])
def test_six_of_ten_pairs_must_keep_their_winner(kept: int, evidence: bool) -> None:
    before = np.ones(PROMPTS)
    after = np.where(np.arange(PROMPTS) < kept, 1.0, 0.0)
    assert (figures(before, after).rate is not None) is evidence


def test_answers_that_are_equal_say_nothing_of_the_judge() -> None:
    half, nothing = np.full(9, 0.5), np.zeros(9)
    found = win_figures(half, half, nothing, np.zeros(9, dtype=bool))
    assert dict(found.rows()).keys() == {"win_rate", "win_rate/length_controlled"}
    assert "no pair differed" in found.sentence("taste", "sft")


def test_a_judge_that_leans_to_the_longer_is_corrected() -> None:
    raw, controlled = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        lengths = rng.normal(40, 50, 1000)
        value = (rng.random(1000) < sigmoid(lengths / 40)).astype(float)
        found = figures(value, value, lengths)
        assert found.rate is not None
        assert found.controlled is not None
        raw.append(found.rate.value)
        controlled.append(found.controlled.value)
        assert found.controlled.low < found.controlled.value < found.controlled.high
    assert np.mean(raw) > 0.65
    assert abs(np.mean(controlled) - 0.5) < 0.02
    assert np.mean(np.abs(np.array(controlled) - 0.5) < 0.05) >= 0.9


def test_its_interval_holds_what_it_estimates() -> None:
    held = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        lengths = rng.normal(10, 50, 400)
        value = (rng.random(400) < sigmoid(0.4 + lengths / 60)).astype(float)
        found = length_controlled(value, lengths)
        assert found is not None
        held += found.low <= sigmoid(np.array(0.4)) <= found.high
    assert 0.92 <= held / 300 <= 0.98


def test_it_is_the_minimum_of_the_penalised_likelihood() -> None:
    rng = np.random.default_rng(3)
    lengths = rng.normal(1, 2, 80)
    value = rng.choice([0, 0.25, 0.5, 0.75, 1], 80)
    z, target = torch.tensor(lengths / lengths.std()), torch.tensor(value)
    weights = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-12)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        eta = weights[0] + weights[1] * z
        nll = torch.nn.functional.binary_cross_entropy_with_logits(eta, target, reduction="sum")
        (found := nll + RIDGE * weights[1] ** 2 / 2).backward()
        return found

    optimizer.step(loss)
    found = length_controlled(value, lengths)
    assert found is not None
    assert found.value == pytest.approx(float(torch.sigmoid(weights.detach()[0])), abs=1e-6)


def test_without_differences_of_length_it_is_the_win_rate() -> None:
    found = length_controlled(np.array([1, 1, 1, 0.0]), np.zeros(4))
    assert found is not None
    assert found.value == pytest.approx(0.75)


NOT_IDENTIFIABLE = {
    "the longer always": (np.array([1, 0, 1, 0.0]), np.array([3, -2, 1, -1.0])),
    "the longer always, equal ones tie": (np.array([1, 0, 0.5]), np.array([2, -3, 0.0])),
    "the shorter always": (np.array([0, 1, 0.0]), np.array([2, -3, 5.0])),
    "all are won": (np.ones(4), np.array([1, -1, 2, 3.0])),
    "one difference": (np.array([1, 0, 1, 0.0]), np.full(4, 7.0)),
}


@pytest.mark.parametrize("case", NOT_IDENTIFIABLE)
def test_where_the_two_separate_there_is_no_figure(case: str) -> None:
    value, lengths = NOT_IDENTIFIABLE[case]
    assert length_controlled(value, lengths) is None
    found = figures(value, value, lengths)
    assert found.rate is not None
    assert "length-controlled not identifiable" in found.sentence("taste", "sft")
