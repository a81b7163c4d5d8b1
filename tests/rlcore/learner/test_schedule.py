import subprocess
import sys
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.learner.schedule import optimizer_lr
from schemas.optimizer import Optimizer, Schedule


def optimizer_of(kind: Any, **schedule: Any) -> Optimizer:
    """With the peak 1."""
    return Optimizer(lr=1.0, schedule=Schedule(kind=kind, **schedule))


@pytest.mark.parametrize("kind", ["linear", "cosine", "wsd"])
@pytest.mark.parametrize(("total", "warmup"), [(116, 11), (116, 0), (5, 0), (5, 2), (1, 0), (1, 1)])
def test_curves_are_hugging_faces_without_their_ends(kind: str, total: int, warmup: int):
    """Their ticks 1 .. total of total + 1; their first and last one are 0 and outside our run."""
    import torch
    import transformers

    decay = max(1, round(0.3 * total))
    stable = max(0, total - decay - warmup)
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = {
        "linear": lambda: transformers.get_linear_schedule_with_warmup(
            optimizer, warmup, total + 1
        ),
        "cosine": lambda: transformers.get_cosine_schedule_with_warmup(
            optimizer, warmup, total + 1
        ),
        "wsd": lambda: transformers.get_wsd_schedule(
            optimizer,
            num_warmup_steps=warmup,
            num_stable_steps=stable,
            num_decay_steps=total + 1 - warmup - stable,
            decay_type="linear",
        ),
    }[kind]()
    theirs = []
    for _ in range(total + 2):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    ours = [
        optimizer_lr(optimizer_of(kind, warmup_steps=warmup, decay_fraction=0.3), step, total)
        for step in range(total)
    ]
    assert ours == pytest.approx(theirs[1 : total + 1], abs=1e-12)
    assert theirs[total + 1] == pytest.approx(0.0, abs=1e-12)


@given(
    kind=st.sampled_from(get_args(Schedule.model_fields["kind"].annotation)),
    total=st.integers(1, 400),
    warmup_steps=st.one_of(st.none(), st.integers(0, 1000)),
    warmup_ratio=st.floats(0, 0.99),
    min_lr_ratio=st.one_of(st.just(0.0), st.floats(0, 1)),
    decay_fraction=st.floats(0.001, 1),
)
def test_every_step_of_a_run_learns_and_the_peak_is_never_passed(
    kind, total, warmup_steps, warmup_ratio, min_lr_ratio, decay_fraction
):
    """Any schedule a recipe can hold, a warm-up longer than the run included."""
    schedule = Schedule(
        kind=kind,
        warmup_steps=warmup_steps,
        warmup_ratio=warmup_ratio,
        min_lr_ratio=min_lr_ratio,
        decay_fraction=decay_fraction,
    )
    optimizer = Optimizer(lr=2e-6, schedule=schedule)
    rates = [optimizer_lr(optimizer, step, total) for step in range(total)]
    assert min(rates) > 0
    assert max(rates) <= 2e-6 * (1 + 1e-9)
    top = rates.index(max(rates))
    assert rates[:top] == sorted(rates[:top]), "up to the peak"
    assert rates[top:] == sorted(rates[top:], reverse=True), "and down from it"


def test_a_million_steps_end_above_zero():
    """Where the curve is steepest against rounding."""
    for kind in ("linear", "cosine", "wsd"):
        assert optimizer_lr(optimizer_of(kind), 999_999, 1_000_000) > 0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 0.775, 0.55, 0.325]),
        ("cosine", [0.5, 1.0, 0.868198, 0.55, 0.231802]),
        ("wsd", [0.5, 1.0, 1.0, 0.7, 0.4]),
    ],
)
def test_curves(kind, expected):
    """By hand; one step further each would be at the floor of .1."""
    optimizer = optimizer_of(kind, warmup_steps=2, min_lr_ratio=0.1, decay_fraction=0.4)
    found = [optimizer_lr(optimizer, step, 5) for step in range(5)]
    assert found == pytest.approx(expected, abs=1e-6)


def test_steps_past_the_end_keep_the_last_rate():
    linear = optimizer_of("linear", min_lr_ratio=0.1)
    last = optimizer_lr(linear, 99, 100)
    assert optimizer_lr(linear, 500, 100) == last
    assert last == pytest.approx(0.1 + 0.9 / 101)


def test_describing_work_to_the_learner_loads_no_torch():
    """The flow process talks to ranks; loading torch would cost it seconds in every run."""
    code = (
        "import sys, rlcore.learner.pool, rlcore.learner.schedule, rlcore.algorithms.objective;"
        "print(sorted({'torch', 'transformers', 'deepspeed'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300
    )
    assert found.stdout == "[]\n", found.stderr
