"""What the key of each stage is made of, without the stage, which imports all that it runs.

For the decorators of the stages (``cached_stage``), and for who runs nothing (``rl-pipeline
status RECIPE``). To add a stage: its entry in ``declared``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlcore.data.sources import (
    data_digests,
    model_digests,
    reward_base_digests,
    reward_model_digests,
)
from rlcore.envs.registry import environment_names
from rlcore.evaluation.license import license_inputs
from rlcore.recipes.load import sampling_code, user_functions
from rlcore.rewards.registry import code_digests
from rlcore.rl.fork import fork_digests, why_from_zero
from rlcore.rl.ptx import ptx_digests
from rlcore.store.versions import VERSION, code_digest, code_parts
from rlcore.supervised.preference_files import OF_PREFERENCE, preference_digests
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe
from schemas.stages import Stage
from tasks.runtime.keys import PART_DIGITS, KeyParts, Obstacle, StageKeys, stage_key

Digests = Callable[[Recipe], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Declared:
    """What says the key of a stage, besides its slice of the recipe and the version of its code.

    ``kind``: of its artifact. ``inputs``: content digests of what the body reads from outside the
    store, by role (``outside.Read``, which the result then names); they count like parents.
    ``user_code``: digests of the user's modules that the body runs, by function. ``resumes``:
    the body continues from checkpoints; why one of fewer iterations cannot be continued.
    """

    stage: str
    kind: str
    inputs: Digests = lambda recipe: {}
    user_code: Digests = lambda recipe: {}
    resumes: Obstacle | None = None

    def keys(self, recipe: Recipe, parents: Mapping[str, ArtifactRef]) -> StageKeys:
        """Return the keys of a run of this stage; runs nothing.

        Reads what the stage reads from outside the store. Raises UserError where that is missing.
        """
        users = self.user_code(recipe)
        inputs, part = self.inputs(recipe), recipe.slice_for(self.stage)

        def key(code: str, part: Mapping[str, Any] = part) -> str:
            return stage_key(self.stage, part, parents, code, inputs)

        code, trajectory, total = code_digest(self.stage, users), None, None
        if self.stage == Stage.RL:
            rest = dict(part["rl"])
            total = rest.pop("iterations")  # they only say when it ends
            trajectory = key("", {**part, "rl": rest})
        made_of = KeyParts(
            self.stage,
            recipe=part,
            parents={role: ref.sha256[:PART_DIGITS] for role, ref in parents.items()},
            inputs={role: str(one) for role, one in inputs.items()},
            code={
                name: one if "==" in one or name == VERSION else one[:PART_DIGITS]
                for name, one in {**code_parts(self.stage), **users}.items()
            },
        )
        return StageKeys(key(code), key(""), code, made_of, {**inputs, **users}, trajectory, total)


def declared() -> dict[Stage, Declared]:
    """Return what the stages declare, in the order in which they run."""
    stages = (
        Declared("base_model", "base_model", inputs=_model, user_code=_environment_of_texts),
        Declared(
            "prepare_data",
            "dataset",
            inputs=lambda recipe: data_digests(recipe.data),
            user_code=_environment,
        ),
        Declared("sft", "policy"),
        Declared("preference", "policy", inputs=_pairs),
        Declared("reward_model", "reward_model", inputs=_preferences, user_code=_sampling),
        Declared("rl", "policy", inputs=_rl_files, user_code=_rl_functions, resumes=why_from_zero),
        Declared("evaluate", "evaluation", inputs=reward_model_digests, user_code=_played),
        Declared("export", "export", inputs=license_inputs),
    )
    return {Stage(one.stage): one for one in stages}


def _model(recipe: Recipe) -> Mapping[str, str]:
    return data_digests(recipe.data) if recipe.model.path is None else model_digests(recipe.model)


def _preferences(recipe: Recipe) -> Mapping[str, str]:
    assert recipe.reward_model is not None, "a recipe without the section has no such stage"
    ranking = {section.ranked_by for section in recipe.sampled_preferences.values()}
    models = reward_model_digests(recipe).items()
    return {
        **preference_digests(recipe.reward_model.preferences),
        **reward_base_digests(recipe.reward_model),
        **{name: digest for name, digest in models if name in ranking},
    }


def _pairs(recipe: Recipe) -> Mapping[str, str]:
    assert recipe.preference is not None, "a recipe without the section has no such stage"
    return preference_digests(recipe.preference.data, OF_PREFERENCE)


def _environment(recipe: Recipe) -> Mapping[str, str]:
    return code_digests(environment_names(recipe))


def _environment_of_texts(recipe: Recipe) -> Mapping[str, str]:
    """Of a base model from scratch, whose tokenizer learns what the environment says."""
    return _environment(recipe) if recipe.model.path is None else {}


def _sampling(recipe: Recipe) -> Mapping[str, str]:
    return code_digests(sampling_code(recipe))


def _played(recipe: Recipe) -> Mapping[str, str]:
    return {**_sampling(recipe), **_environment(recipe)}


def _rl_functions(recipe: Recipe) -> Mapping[str, str]:
    return {**code_digests(user_functions(recipe)), **_environment(recipe)}


def _rl_files(recipe: Recipe) -> Mapping[str, str]:
    return {
        **reward_model_digests(recipe),
        **ptx_digests(recipe.rl.ptx),
        **fork_digests(recipe),
    }
