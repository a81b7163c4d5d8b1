"""Each state and cause in one line that says what to look at."""

import pytest

from rlcore.plan.states import Cause, StageState, State, What, state_lines


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (StageState("rl", State.CACHED), "cached"),
        (StageState("rl", State.CONTINUES, step=40), "continues at 41"),
        (StageState("rl", State.MAY_RUN, note="sft"), "runs if the result of sft changes"),
        (
            StageState("rl", State.RUNS, causes=(Cause(What.RECIPE, "rl.kl.beta", 0.1, 0.2),)),
            "runs, because rl.kl.beta 0.1 -> 0.2",
        ),
        (
            StageState("rl", State.RUNS, causes=(Cause(What.CODE, "tasks.rl", "a", "b"),)),
            "runs, because code tasks.rl changed (a -> b)",
        ),
        (
            StageState("rl", State.RUNS, causes=(Cause(What.INPUT, "x.jsonl", None, "b"),)),
            "runs, because input x.jsonl is new (absent -> b)",
        ),
    ],
)
def test_a_state_in_words(state: StageState, sentence: str) -> None:
    assert state.sentence() == sentence
    assert state_lines([state]) == [f"rl           {sentence}"]
    assert state.to_json()["sentence"] == sentence
