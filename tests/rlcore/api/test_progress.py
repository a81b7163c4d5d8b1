"""A training call shows how far it is; where nothing can be redrawn, by lines."""

import io

from rich.console import Console

from rlcore.api.progress import TrainingBar

METRICS = {"critic/score/mean": 0.512, "perf/total_tokens_per_s": 12345.6}


def shown(*, terminal: bool, on: bool = True) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=120)
    with TrainingBar("grpo", 2, shown=on, console=console) as bar:
        bar.show(1, METRICS)
        bar.show(2, {})
    return output.getvalue()


def test_a_terminal_gets_a_bar_with_reward_and_rate() -> None:
    text = shown(terminal=True)
    assert "grpo" in text
    assert "2/2" in text


def test_a_file_gets_lines_and_no_control_characters() -> None:
    assert shown(terminal=False).splitlines() == [
        "grpo 1/2  reward 0.512  12,346 tokens/s",
        "grpo 2/2  ",
    ]


def test_it_can_be_switched_off() -> None:
    assert shown(terminal=True, on=False) == shown(terminal=False, on=False) == ""
