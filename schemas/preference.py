"""Recipe section ``preference``: the policy trained on preferences, before RL or instead of it."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from schemas.names import PREFERENCE
from schemas.optimizer import Optimizer, Schedule, rest_of
from schemas.presets import PREFERENCE_PRESETS, overlay
from schemas.reward_model import FilePreferences, Gsm8kSolutions
from schemas.section import Section, rule, setting

_OPTIMIZER = Optimizer(
    lr=1e-6, weight_decay=0.0, schedule=Schedule(kind="linear", warmup_ratio=0.1)
)
# What only one of the algorithms reads.
_OF_DPO = ("loss", "label_smoothing", "rpo_alpha")
_OF_KTO = ("desirable_weight", "undesirable_weight")


class PreferenceSection(Section):
    """Stage preference: DPO or KTO on the policy that SFT made, which is also its reference."""

    algorithm: Literal["dpo", "kto"] = setting(
        "dpo",
        "dpo: pairs of responses (arXiv 2305.18290); kto: single ones, desirable or not"
        " (arXiv 2402.01306); a preset, which fills what is left out",
    )
    data: Annotated[FilePreferences | Gsm8kSolutions, Field(discriminator="kind")] = Field(
        description="as reward_model.preferences, and a file of prompt, completion, label (true ="
        " desirable) for kto, for which of ranked responses those of rank 1 are desirable"
    )
    loss: Literal["sigmoid", "ipo"] = setting(
        "sigmoid", "dpo: sigmoid, of sums over tokens; ipo, of means (arXiv 2310.12036)"
    )
    beta: float = setting(
        0.1,
        "per nat: how closely the policy is held to the reference; with ipo the margin"
        " aimed at is 1 / (2 beta) nats per token",
        gt=0,
    )
    label_smoothing: float = setting(
        0.0, "dpo, sigmoid: share of pairs with flipped ranks", ge=0, lt=0.5
    )
    rpo_alpha: float = setting(
        0.0, "dpo: weight of the mean NLL of the better response (arXiv 2404.19733)", ge=0
    )
    desirable_weight: float = setting(1.0, "kto: of desirable responses", gt=0)
    undesirable_weight: float = setting(1.0, "kto: of all others", gt=0)
    epochs: int = setting(1, "passes over the preferences", ge=1)
    max_steps: int | None = setting(None, "most optimizer steps", ge=1)
    batch_size: int = setting(
        64,
        "per optimizer step: dpo prompts, of which two responses make one pair; kto responses",
        ge=1,
    )
    max_tokens: int = setting(1024, "tokens of prompt and response, which is cut behind them", ge=8)
    drop_truncated: bool = setting(False, "leave out what would be cut")
    checkpoint_every: int = setting(200, "steps between checkpoints", ge=1)
    optimizer: Annotated[Optimizer, rest_of(_OPTIMIZER)] = _OPTIMIZER

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        preset = values.get("algorithm", "dpo") if isinstance(values, Mapping) else None
        known = PREFERENCE_PRESETS.get(preset) if isinstance(preset, str) else None
        return values if known is None else overlay(known, values)

    @rule
    def _settings_are_read(self) -> Iterator[str]:
        unread = _OF_KTO if self.algorithm == "dpo" else _OF_DPO
        for name in unread:
            value, default = getattr(self, name), type(self).model_fields[name].default
            if value != default:
                yield (
                    f"{name} = {value!r} is not read by algorithm = {self.algorithm!r}; remove it"
                    f" or set algorithm to {'kto' if self.algorithm == 'dpo' else 'dpo'}"
                )
        if self.algorithm == "dpo" and self.loss == "ipo" and self.label_smoothing:
            yield (
                f"label_smoothing = {self.label_smoothing:g} is not read by loss = 'ipo', whose"
                " target is finite already; remove it or set loss to sigmoid"
            )


def export_rules(recipe: Any) -> Iterator[str]:
    """Yield a sentence where no stage makes what is exported, or it is not evaluated."""
    shown = f"evaluate.checkpoints = {list(recipe.evaluate.checkpoints)}"
    if not recipe.rl.enabled and recipe.preference is None:
        yield (
            "rl.enabled = false and the section preference is null, so no stage makes the policy"
            " that is exported; set preference, or rl.enabled to true"
        )
    elif (exported := recipe.policies[-1]) not in recipe.evaluate.checkpoints:
        yield (
            f"{shown} lacks {exported}, which is exported and whose figures the model card states;"
            f" add {exported}"
        )
    if not recipe.rl.enabled and recipe.retrain is not None:
        yield (
            "rl.enabled = false and the section retrain is set, whose gate compares policies of RL;"
            " set retrain to null, or rl.enabled to true"
        )
    if PREFERENCE in recipe.evaluate.checkpoints and recipe.preference is None:
        yield f"{shown} holds preference and the section preference is null; take it out"
    if recipe.preference is not None:
        longest, context = recipe.preference.max_tokens, recipe.model.max_tokens
        if longest > context:
            yield (
                f"preference.max_tokens = {longest} exceeds model.max_tokens = {context}; lower it"
                " or raise model.max_tokens"
            )
