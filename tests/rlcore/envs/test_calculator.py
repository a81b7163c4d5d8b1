import pytest

from rlcore.envs.calculator import Calculator, evaluated
from rlcore.envs.tools import call_in


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12*(3+4)", "84"),
        ("7/2", "3.5"),
        ("8/2", "4"),
        ("-3 - -4", "1"),
        ("17//5*10 + 17%5", "32"),
        ("1/0", "error: division by zero"),
        ("2**9", "error: this is no arithmetic expression"),
        ("True+1", "error: this is no arithmetic expression"),
        ("__import__('os')", "error: this is no arithmetic expression"),
        ("9" * 40 + "*1", "error: this is no arithmetic expression"),
        ("1+" * 200 + "1", "error: an expression may have 200 characters"),
        ("(" * 150, "error: this is no arithmetic expression"),
        ("", "error: this is no arithmetic expression"),
    ],
)
def test_only_arithmetic_is_computed(expression: str, value: str) -> None:
    assert evaluated(expression) == value


def test_the_right_expression_gives_the_ground_truth() -> None:
    perfect = Calculator(no_call=0, wrong_operation=0, malformed=0)
    for seed in range(50):
        start, messages = perfect.reset(seed), perfect.demonstration(seed)
        assert start is not None
        assert messages[0] == start.messages[0]
        assert messages[-1]["content"] == f"#### {start.ground_truth}"
        call = call_in(messages[1]["content"])
        assert call is not None
        assert perfect.calculate(**call.arguments) == start.ground_truth


def test_demonstrations_hold_the_errors_that_they_promise() -> None:
    default = Calculator()
    shown = [default.demonstration(seed) for seed in range(2000)]
    truths = [default.reset(seed) for seed in range(2000)]
    no_call = sum(len(messages) == 2 and "####" in messages[1]["content"] for messages in shown)
    right = sum(
        messages[-1]["content"] == f"#### {start.ground_truth}"
        for messages, start in zip(shown, truths, strict=True)
        if start is not None
    )
    assert 0.42 < no_call / 2000 < 0.52
    assert 0.3 < right / 2000 < 0.45


def test_prompts_of_data_are_left_alone() -> None:
    assert Calculator().reset(0, data_source="openai/gsm8k") is None
