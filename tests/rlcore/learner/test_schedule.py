import math
import subprocess
import sys

import pytest

from rlcore.learner.schedule import learning_rate
from schemas.errors import UserError


def test_cosine_is_hugging_faces_one_tick_early():
    """SPEC L6: 116 steps, 11 of warm-up; theirs is 0 on the first step, ours never is."""
    import torch
    from transformers import get_cosine_schedule_with_warmup

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 11, 116)
    theirs = []
    for _ in range(117):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    ours = [
        learning_rate(step, peak=1.0, kind="cosine", total_steps=116, warmup_steps=11)
        for step in range(116)
    ]
    assert ours == pytest.approx(theirs[1:], abs=1e-12)
    assert ours[0] == pytest.approx(1 / 11)
    assert ours[4] == pytest.approx(0.4545, abs=1e-4)
    assert (ours[10], ours[115]) == (1.0, pytest.approx(0.0, abs=1e-12))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 0.775, 0.55, 0.325, 0.1]),
        ("cosine", [0.5, 1.0, 0.55 + 0.45 * math.cos(math.pi / 4), 0.55, None, 0.1]),
        ("wsd", [0.5, 1.0, 1.0, 1.0, 0.55, 0.1]),
    ],
)
def test_curves(kind, expected):
    for step, value in enumerate(expected):
        found = learning_rate(
            step,
            peak=1.0,
            kind=kind,
            total_steps=6,
            warmup_steps=2,
            min_ratio=0.1,
            decay_fraction=1 / 3,
        )
        if value is not None:
            assert found == pytest.approx(value), (kind, step)


def test_steps_past_the_end_keep_the_last_rate():
    last = learning_rate(99, peak=2.0, kind="linear", total_steps=100, min_ratio=0.1)
    assert learning_rate(500, peak=2.0, kind="linear", total_steps=100, min_ratio=0.1) == last
    assert last == pytest.approx(0.2)


def test_bad_input_is_told():
    with pytest.raises(UserError, match="did you mean 'cosine'"):
        learning_rate(0, peak=1.0, kind="cosin", total_steps=10)
    with pytest.raises(UserError, match="warmup_steps = 20 must lie in"):
        learning_rate(0, peak=1.0, total_steps=10, warmup_steps=20)
    with pytest.raises(UserError, match="min_lr_ratio = 2"):
        learning_rate(0, peak=1.0, total_steps=10, min_ratio=2.0)


def test_describing_work_to_the_learner_loads_no_torch():
    """The flow process talks to ranks; loading torch would cost it seconds in every run."""
    code = (
        "import sys, rlcore.learner.group, rlcore.learner.schedule, rlcore.algorithms.objective;"
        "print(sorted({'torch', 'transformers', 'deepspeed'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.stdout == "[]\n", found.stderr
