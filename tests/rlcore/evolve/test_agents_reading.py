"""What counts as an answer and as a verdict, and what does not."""

import pytest

from rlcore.evolve.agents import VerifierVerdict, answer_in, verdict_in
from schemas.outcomes import FinishReason

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer>42</answer>", "42"),
        ("so <answer> 4\n2 </answer> \n", "4\n2"),
        ("<answer>1</answer> no: <answer>2</answer>", "2"),
        ("<answer>a <answer>b</answer>", "b"),
        ("<answer>42</answer> is it", None),
        ("42</answer>", None),
        ("<answer>42", None),
        ("<answer>  </answer>", None),
        ("<answer>1</answer></answer>", None),
        ("", None),
    ],
)
def test_an_answer_ends_the_text_in_a_tag(text: str, answer: str | None) -> None:
    assert answer_in(text, "tag", STOP) == answer
    assert answer_in(text, "tag", LENGTH) == answer, "the tag says that it is whole"


def test_a_text_is_an_answer_where_it_ended_by_itself() -> None:
    assert answer_in(" #### 4 ", "text", STOP) == "#### 4"
    assert answer_in("#### 4", "text", LENGTH) is None
    assert answer_in("  ", "text", STOP) is None


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (r"Wrong sum. \boxed{0}", VerifierVerdict("Wrong sum.", 0)),
        (r"\boxed{1}", VerifierVerdict("", 1)),
        (r"\boxed{0}, no: \boxed{ 1 }.", VerifierVerdict(r"\boxed{0}, no:", 1)),
        (r"\boxed{0} then \boxed{2}", None),
        (r"\boxed{right}", None),
        (r"\boxed{1", None),
        ("1", None),
        ("", None),
    ],
)
def test_a_verdict_is_the_last_box(text: str, verdict: VerifierVerdict | None) -> None:
    assert verdict_in(text) == verdict
