"""Recipe sections ``optimizer`` and ``schedule``, which each stage that trains has."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from schemas.presets import overlay
from schemas.section import Section, setting


class Schedule(Section):
    """Learning rate by optimizer step (docs/understand/algorithms.md, "Learning rate")."""

    kind: Literal["constant", "linear", "cosine", "wsd"] = setting(
        "constant", "after warm-up; wsd = constant, then a linear decay"
    )
    warmup_steps: int | None = setting(
        None, "optimizer steps from lr/warmup to lr; null = by ratio", ge=0
    )
    warmup_ratio: float = setting(
        0.0, "warm-up as a share of all steps, without warmup_steps", ge=0, lt=1
    )
    min_lr_ratio: float = setting(
        0.0, "share of lr that the step after the last would have", ge=0, le=1
    )
    decay_fraction: float = setting(
        0.1, "wsd only: share of all steps that its decay takes", gt=0, le=1
    )


Beta = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Section):
    """AdamW and its schedule."""

    lr: float = setting(1e-6, "peak learning rate", gt=0)
    betas: tuple[Beta, Beta] = setting(
        (0.9, 0.999), "decay per step of the first and second moment"
    )
    eps: float = setting(1e-8, "added to the root of the second moment", gt=0)
    weight_decay: float = setting(0.01, "decoupled: lr x this, per step", ge=0)
    grad_clip: float = setting(1.0, "largest norm of the whole gradient", gt=0)
    schedule: Schedule = Schedule()


def rest_of(default: Optimizer) -> BeforeValidator:
    """Fill what a recipe leaves out of a section's optimizer from that section's ``default``.

    Without this, setting one key would silently reset the others to the defaults of ``Optimizer``.
    """
    known = default.model_dump(exclude_unset=True)
    return BeforeValidator(
        lambda value: overlay(known, value) if isinstance(value, Mapping) else value
    )
