"""Recipe section ``reward_model``: preferences and the model trained on them (SPEC D6)."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.rl import Optimizer, Schedule
from schemas.section import Section

REWARD_MODEL = "reward_model"  # name of the trained model among ``reward.functions``


class SampledPreferences(Section):
    """Responses of the warm-started policy, ranked by what the reward functions say of them."""

    kind: Literal["samples"] = "samples"
    prompts: int = Field(default=1024, ge=1, description="training prompts to sample")
    validation_prompts: int = Field(default=256, ge=1)
    min_responses: int = Field(default=4, ge=2, description="K is drawn between the two (S3: 4-9)")
    max_responses: int = Field(default=9, ge=2)
    temperature: float = Field(default=1.0, gt=0)
    max_new_tokens: int = Field(default=512, ge=1)

    @model_validator(mode="after")
    def _range_is_one(self) -> "SampledPreferences":
        if self.max_responses < self.min_responses:
            raise ValueError(
                f"max_responses = {self.max_responses} is below min_responses ="
                f" {self.min_responses}; raise it"
            )
        return self


class Gsm8kSolutions(Section):
    """GSM8K's example_model_solutions.jsonl: four model solutions per question, each with a flag
    whether it is correct."""

    kind: Literal["gsm8k_solutions"] = "gsm8k_solutions"
    path: str | None = Field(default=None, description="the file; default: below $GSM8K_DIR")
    validation_fraction: float = Field(default=0.2, gt=0, lt=1, description="by question hash")
    limit: int | None = Field(default=None, ge=1, description="first questions; null = all")


Preferences = Annotated[SampledPreferences | Gsm8kSolutions, Field(discriminator="kind")]


class RewardModelSection(Section):
    """Stage reward_model: a scalar head on the warm-started policy, trained on ranked responses."""

    preferences: Preferences = SampledPreferences()
    epochs: int = Field(default=1, ge=1)
    batch_prompts: int = Field(default=64, ge=1, description="prompts per optimizer step")
    max_tokens: int = Field(default=1024, ge=8, description="longer responses are left out")
    optimizer: Optimizer = Optimizer(
        lr=1e-5, betas=(0.9, 0.95), schedule=Schedule(kind="cosine", warmup_ratio=0.03)
    )
