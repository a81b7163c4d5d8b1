"""The sides of the sampling benchmark do equal work in turn, and its ratio is of medians."""

from collections.abc import Callable

from tests.bench.sampling import PROMPT, SAMPLES, VOCABULARY, WARMUP, alternating, batch, ratio


def test_a_round_has_prompts_of_its_own_that_both_sides_share() -> None:
    """Those of the round before would be in the prefix cache of one side only."""
    prompts, seeds = batch(16, seed=1)
    assert batch(16, seed=1) == (prompts, seeds)
    assert batch(16, seed=2)[0] != prompts
    assert len(prompts) == len(set(seeds)) == 16
    assert prompts[:SAMPLES] == [prompts[0]] * SAMPLES
    assert all(PROMPT[0] <= len(prompt) <= PROMPT[1] for prompt in prompts)
    assert all(token < VOCABULARY for prompt in prompts for token in prompt)


def test_sides_take_turns_and_their_first_rounds_do_not_count() -> None:
    calls: list[tuple[str, int]] = []

    def side(name: str) -> Callable[[int], float]:
        def run(round_: int) -> float:
            calls.append((name, round_))
            return float(round_)

        return run

    found = alternating({"a": side("a"), "b": side("b")}, rounds=2)
    assert calls[:4] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert found == {"a": [WARMUP, WARMUP + 1.0], "b": [WARMUP, WARMUP + 1.0]}


def test_the_ratio_is_of_medians_and_its_spread_of_pairs() -> None:
    found = {"ours": [2.0, 3.0, 9.0], "bare": [2.0, 2.0, 3.0]}
    measure = ratio("it", found, "ours", "bare", most=1.5)
    assert (measure.value, measure.met) == (1.5, True)
    assert measure.note == "of pairs 1.000 to 3.000"
