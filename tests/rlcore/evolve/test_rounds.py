"""Rounds of a scripted policy and scripted verifiers, against a table worked by hand."""

from typing import Any

from rlcore.evolve.rounds import Round, draw_independent, play_round, remembered
from tests.rlcore.evolve.scripted import Engines, Words, agents, problem, section

PROBLEM = problem("a", "2 and 3?")
LONG = "two, then three more, so <answer>5</answer>"
WORDS: Words = {
    ("policy", 1, "a", 0): LONG,
    ("verifier", 1, 0, "a", 0): r"fine \boxed{1}",
    ("verifier", 1, 1, "a", 0): r"also \boxed{1}",
    ("verifier", 1, 2, "a", 0): r"hm \boxed{0}",
    ("policy", 2, "a", 0): "<answer>6</answer>",
    ("verifier", 2, 0, "a", 0): r"no \boxed{0}",
    ("verifier", 2, 2, "a", 0): "who knows",
    ("verifier", 2, 2, "a", 1): r"yes \boxed{1}",  # verifier 1 is never readable
    ("policy", 3, "a", 2): "<answer>5</answer>",  # at the second retry
    ("verifier", 3, 0, "a", 0): r"right \boxed{1}",  # the two others are never readable
    # round 4: no attempt has an answer
}
# round: answer, attempts of the policy, memory shown, verdicts, attempts of the verifiers
HAND_WORKED: dict[int, tuple[Any, ...]] = {
    1: ("5", 1, [], [1, 1, 0], [1, 1, 1]),
    2: ("6", 1, [1], [0, 0, 1], [1, 3, 2]),
    # sums of ranks: round 1 (accepted, long) 0 + 1, round 2 (rejected, short) 1 + 0
    3: ("5", 3, [1, 2], [1, 0, 0], [1, 3, 3]),
    # round 1: 0 + 2; rounds 2 and 3 (rejected, equally short) 1 + 0 each
    4: (None, 3, [3, 2], [], []),
}
MEMORY = {  # after all: round, score, report
    "a": [(1, 1, "fine"), (2, 0, "no"), (3, 0, "")]
}


def played(engines: Any, rounds: int = 4) -> list[Round]:
    asked = agents(engines, section())
    done: list[Round] = []
    for number in range(1, rounds + 1):
        done.append(play_round(number, [PROBLEM], remembered(done), asked))
    return done


def row_of(one: Round) -> tuple[Any, ...]:
    (answer,) = one.answers.rows(named=True)
    verdicts = one.verdicts.sort("verifier")
    return (
        answer["answer"],
        answer["attempts"],
        answer["memory"],
        verdicts["verdict"].to_list(),
        verdicts["attempts"].to_list(),
    )


def test_votes_retries_and_memory_are_those_of_the_table() -> None:
    done = played(Engines(WORDS))
    assert {number: row_of(one) for number, one in enumerate(done, start=1)} == HAND_WORKED
    memory = remembered(done)
    kept = {uid: [(e.round, e.score, e.report) for e in es] for uid, es in memory.items()}
    assert kept == MEMORY, "a round without an answer adds nothing"


def test_the_policy_sees_the_memory_and_a_verifier_the_solution_alone() -> None:
    engines = Engines(WORDS)
    done = played(engines, 3)
    third = done[2].answers["prompt"].item()
    assert third == f"2 and 3? [1 1 {LONG} fine] [2 0 <answer>6</answer> no]"
    judged = {text for text, _ in engines.asked if "Judge" in text}
    assert len(judged) == 3, "one of each round's solution"
    assert any(f"Judge 2 and 3?: {LONG}" in text for text in judged)
    assert not any("fine" in text for text in judged)


def test_each_agent_has_its_temperature_and_no_more_calls_than_its_retries() -> None:
    engines = Engines({})
    played(engines, 1)
    assert [sampling.temperature for _, sampling in engines.asked] == [0.7] * 3, "no answer"
    engines = Engines({("policy", 1, "a", 0): "<answer>1</answer>"})
    played(engines, 1)
    temperatures = [sampling.temperature for _, sampling in engines.asked]
    assert temperatures == [0.7] + [0.4] * 9, "three verifiers, asked three times each"


def test_a_rerun_asks_the_same() -> None:
    first, second = Engines(WORDS), Engines(WORDS)
    one, two = played(first), played(second)
    assert first.asked == second.asked
    for a, b in zip(one, two, strict=True):
        assert a.answers.equals(b.answers)
        assert a.verdicts.equals(b.verdicts)


def test_problems_do_not_share_seeds_or_memory() -> None:
    words: Words = {
        ("policy", 1, "a", 0): "<answer>5</answer>",
        ("policy", 1, "b", 0): "<answer>7</answer>",
    }
    asked = agents(Engines(words), section())
    both = [PROBLEM, problem("b", "3 and 4?")]
    first = play_round(1, both, {}, asked)
    assert dict(first.answers.select("uid", "answer").iter_rows()) == {"a": "5", "b": "7"}
    second = play_round(2, both[::-1], remembered([first]), asked)
    prompts = dict(second.answers.select("uid", "prompt").iter_rows())
    assert prompts["a"] == "2 and 3? [1 0 <answer>5</answer> ]"
    assert prompts["b"] == "3 and 4? [1 0 <answer>7</answer> ]"


def test_an_independent_sample_is_a_first_answer_by_another_seed() -> None:
    engines = Engines({("independent", 3, "a", 1): "<answer>8</answer>"})
    drawn = draw_independent(3, [PROBLEM], agents(engines, section()))
    (row,) = drawn.rows(named=True)
    assert (row["round"], row["answer"], row["attempts"], row["memory"]) == (3, "8", 2, [])
    assert row["prompt"] == "2 and 3?"
