"""Layouts that cannot work are refused before anything starts."""

from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.hardware import HardwareSection, LearnerHardware


@pytest.mark.parametrize(
    "overrides",
    [
        {"hardware.learner.ranks": 2, "hardware.device": "cpu"},
        {"hardware.learner.ranks": 2, "hardware.learner.gpus_per_rank": 1},
        {"hardware.learner.ranks": 1, "hardware.learner.gpus_per_rank": 0.2},
    ],
)
def test_ranks_without_a_shared_gpu_are_accepted(overrides: dict) -> None:
    """On CPU the share of a GPU means nothing; a lone rank may share its GPU with an engine."""
    learner = load_recipe("quickstart", overrides, directory=RECIPES).hardware.learner
    assert learner.ranks == overrides["hardware.learner.ranks"]


@pytest.mark.parametrize(
    ("fields", "dtype", "stage"),
    [
        ({}, "float32", 0),
        ({}, "bfloat16", 1),
        ({"offload_optimizer": True}, "float32", 1),
        ({"ranks": 2, "gpus_per_rank": 1}, "float32", 1),
        ({"zero_stage": 1}, "float32", 1),
        ({"zero_stage": 3, "offload_params": True}, "bfloat16", 3),
    ],
)
def test_auto_divides_nothing_where_one_rank_has_it_all(
    fields: dict[str, Any], dtype: str, stage: int
) -> None:
    """bfloat16 needs the masters that ZeRO keeps; what is named is taken as it is."""
    assert LearnerHardware.model_validate(fields).stage(dtype) == stage


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"learner": {"offload_params": True}}, "offload_params needs zero_stage 3, not auto; set"),
        (
            {"learner": {"offload_optimizer": True, "zero_stage": 0}},
            "offload_optimizer needs zero_stage 1 or more; set zero_stage to 1",
        ),
        (
            {"learner": {"ranks": 3, "gpus_per_rank": 1, "sequence_parallel": 2}},
            "sequence_parallel = 2 does not divide ranks = 3; set ranks to a multiple of it",
        ),
        (
            {
                "learner": {
                    "ranks": 2,
                    "gpus_per_rank": 1,
                    "sequence_parallel": 2,
                    "attention": "eager",
                }
            },
            "exchanges tokens within sdpa and flash attention, not attention = 'eager'",
        ),
        (
            {
                "learner": {
                    "reference_ranks": 2,
                    "gpus_per_rank": 1,
                    "zero_stage": 3,
                    "offload_reference": True,
                }
            },
            "offload_reference is for a reference that is whole, not in 2 parts",
        ),
        (
            {"rollout": {"engine": "transformers", "sleep": True}},
            "sleep = true is vLLM's, and engine = 'transformers' keeps its memory",
        ),
        (
            {"rollout": {"tensor_parallel": 2, "gpus_per_engine": 1}},
            "tensor_parallel = 2 needs gpus_per_engine = 2, not 1",
        ),
        (
            {"rollout": {"tensor_parallel": 2, "gpus_per_engine": 2, "engine": "transformers"}},
            "engine = 'transformers' samples in one process; set engine to 'vllm'",
        ),
        (
            {"cluster": "in_process", "rollout": {"tensor_parallel": 2, "gpus_per_engine": 2}},
            "cluster 'in_process' is one process, not rollout.tensor_parallel = 2",
        ),
        (
            {"learner": {"ranks": 2}},
            r"gpus_per_rank = 0\.3 places several of learner\.ranks = 2 on one GPU, which NCCL",
        ),
        (
            {"cluster": "in_process", "learner": {"ranks": 2, "gpus_per_rank": 1}},
            "cluster 'in_process' is one process, not learner.ranks = 2",
        ),
        (
            {"cluster": "in_process", "learner": {"reference_ranks": 2, "gpus_per_rank": 1}},
            "cluster 'in_process' is one process, not learner.reference_ranks = 2",
        ),
        (
            {"learner": {"reference_ranks": 2}},
            r"places several of learner\.reference_ranks = 2 on one GPU, which NCCL refuses",
        ),
        (
            {"rollout": {"engine": "sglang"}},
            r"'sglang' is not one of vllm, transformers, auto and not 'package\.module:Class' or",
        ),
        ({"rollout": {"engine": "vlm"}}, "did you mean 'vllm'"),
        ({"rollout": {"engine": "engine.py:"}}, "'engine.py:' is not one of vllm"),
        (
            {"cluster": "in_process", "rollout": {"engine": "vllm"}},
            r"set rollout\.engine to 'transformers' or cluster to 'ray'",
        ),
    ],
)
def test_a_layout_that_would_fail_in_the_run_is_refused(
    fields: dict[str, Any], sentence: str
) -> None:
    """NCCL refuses its first collective after all that runs before the learner."""
    with pytest.raises(ValueError, match=sentence):
        HardwareSection.model_validate(fields)


def test_the_layout_without_ray_is_one_process_of_each() -> None:
    HardwareSection.model_validate(
        {"cluster": "in_process", "rollout": {"engine": "transformers"}, "device": "cpu"}
    )
    section = HardwareSection.model_validate({"cluster": "in_process"})
    assert section.rollout.engine == "auto", "the default of one key was refused by the other"


@pytest.mark.parametrize("engine", ["my_package.engine:Mine", "engine.py:Mine", "/x/engine.py:A"])
def test_the_engine_may_be_the_users_own_class(engine: str) -> None:
    section = {"cluster": "in_process", "rollout": {"engine": engine}}
    assert HardwareSection.model_validate(section).rollout.engine == engine
