"""Recipe sections ``optimizer`` and ``schedule``, which each stage that trains has."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from schemas.presets import overlay
from schemas.section import Section


class Schedule(Section):
    """Learning-rate schedule in optimizer steps (docs/understand/algorithms.md, "Learning
    rate")."""

    kind: Literal["constant", "linear", "cosine", "wsd"] = Field(
        default="constant", description="after warm-up; wsd = constant, then a linear decay"
    )
    warmup_steps: int | None = Field(
        default=None, ge=0, description="optimizer steps from lr/warmup to lr; null = by ratio"
    )
    warmup_ratio: float = Field(
        default=0.0, ge=0, lt=1, description="warm-up as a share of all steps, without warmup_steps"
    )
    min_lr_ratio: float = Field(
        default=0.0, ge=0, le=1, description="share of lr that the step after the last would have"
    )
    decay_fraction: float = Field(
        default=0.1, gt=0, le=1, description="wsd only: share of all steps that its decay takes"
    )


Beta = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Section):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-6, gt=0, description="peak learning rate")
    betas: tuple[Beta, Beta] = Field(
        default=(0.9, 0.999), description="decay per step of the first and second moment"
    )
    eps: float = Field(default=1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(default=0.01, ge=0, description="decoupled: lr x this, per step")
    grad_clip: float = Field(default=1.0, gt=0, description="largest norm of the whole gradient")
    schedule: Schedule = Schedule()


def rest_of(default: Optimizer) -> BeforeValidator:
    """Fill what a recipe leaves out of a section's optimizer from that section's ``default``.

    Without this, setting one key would silently reset the others to the defaults of ``Optimizer``.
    """
    known = default.model_dump(exclude_unset=True)
    return BeforeValidator(
        lambda value: overlay(known, value) if isinstance(value, Mapping) else value
    )
