"""Modules without a test file of their name, for tests/test_structure.py."""

# Why a module has no tests/<path>/test_<module>.py: the test file that drives it, or what it holds.
UNMIRRORED: dict[str, tuple[str, ...]] = {
    "names and types only": (
        *("rlcore/cluster/loopback.py", "rlcore/sandbox/types.py", "rlcore/weights/stamp.py"),
        *("schemas/chats.py", "schemas/names.py", "schemas/records.py"),
        "schemas/section.py",
    ),
    "tests/test_architectures.py": ("rlcore/models/architectures.py",),
    "tests/rlcore/data/test_spread.py": ("rlcore/data/child.py",),
    "tests/rlcore/algorithms/test_advantages.py": ("rlcore/algorithms/shapes.py",),
    "tests/rlcore/envs/test_process.py": (
        *("rlcore/envs/child.py", "rlcore/envs/registry.py", "rlcore/models/tool_schema.py"),
    ),
    "tests/rlcore/envs/test_pool.py": ("rlcore/envs/worker.py",),
    "tests/schemas/test_recipe.py": ("schemas/model.py",),
    "tests/schemas/test_rl.py": ("schemas/rollout.py",),
    "tests/schemas/test_environment.py": ("schemas/context.py",),
    "tests/rlcore/test_recipe_keys.py": ("rlcore/foreign_keys.py",),
    "tests/test_wheel.py": ("flows/places.py",),
    "tests/flows/commands/test_reward.py": tuple(
        f"rlcore/reward_trial/{name}.py" for name in ["rows", "score", "figures", "findings"]
    ),
    "tests/flows/commands/test_json.py": tuple(
        f"flows/commands/{name}.py" for name in ["arguments", "recipes"]
    ),
    "tests/rlcore/results/test_lineage.py": ("rlcore/results/subject.py",),
    "tests/tasks/runtime/test_caching.py": (
        *("tasks/runtime/pipeline.py", "tasks/runtime/stage_run.py"),
    ),
    "tests/flows/test_cancel.py": ("flows/cancelling.py",),
    "tests/flows/test_completion.py": ("flows/commands/completion.py",),
    "tests/flows/commands/test_evaluate.py": (
        *("tasks/evaluate_model.py", "rlcore/results/model.py"),
    ),
    "tests/flows/commands/test_run.py": ("flows/inline.py",),
    "tests/flows/test_evolve.py": ("rlcore/evolve/session.py", "tasks/evolve.py"),
    "tests/rlcore/evolve/test_scores.py": ("schemas/evolve_tables.py",),
    "tests/rlcore/store/test_tables.py": ("schemas/contract.py",),
    "tests/flows/test_study.py": ("flows/outcomes.py", "flows/results_page.py"),
    "tests/flows/test_retrain.py": ("tasks/retraining/gate.py", "tasks/retraining/promote.py"),
    "tests/flows/test_retrain_deployed.py": ("tasks/retraining/events.py",),
    "tests/flows/test_resume.py": (
        "flows/rl_loop.py",
        *(f"tasks/{phase}.py" for phase in ("rollout", "reward", "advantage", "update", "sync")),
    ),
    "tests/flows/test_rl_pipeline.py": (
        *(f"tasks/{stage}.py" for stage in ("base_model", "prepare_data", "sft", "rl")),
        *("tasks/evaluate.py", "tasks/export.py", "tasks/run_page/summary.py"),
    ),
    "tests/rlcore/rl/test_replay.py": ("rlcore/rl/credit.py", "rlcore/rl/recorded.py"),
    "tests/tasks/run_page/test_page.py": ("tasks/run_page/board.py", "tasks/run_page/view.py"),
    "tests/flows/test_reward_model.py": ("tasks/reward_model.py",),
    "tests/rlcore/cluster/test_clusters.py": (
        *("rlcore/cluster/lazy.py", "rlcore/cluster/ray_cluster.py", "rlcore/cluster/shell.py"),
    ),
    "tests/rlcore/diagnostics/test_checks.py": (
        *("rlcore/diagnostics/policy_checks.py", "rlcore/diagnostics/reward_checks.py"),
        *("rlcore/diagnostics/measures.py", "rlcore/diagnostics/types.py"),
    ),
    "tests/rlcore/engines/test_engines.py": ("rlcore/engines/vllm_transfer.py",),
    "tests/rlcore/from_verl/shell/test_expansion.py": ("rlcore/from_verl/shell/value.py",),
    "tests/rlcore/from_verl/test_translate.py": (
        *("rlcore/from_verl/batches.py", "rlcore/from_verl/layout.py"),
        "rlcore/from_verl/learning.py",
    ),
    "tests/rlcore/learner/test_passes.py": ("rlcore/learner/engine.py",),
    "tests/rlcore/learner/test_state.py": ("rlcore/learner/shards.py",),
    "tests/rlcore/preflight/test_start.py": ("rlcore/preflight/files.py",),
    "tests/rlcore/results/test_queries.py": (
        *("rlcore/results/data_dictionary.py", "schemas/table_list.py"),
    ),
    "tests/rlcore/report/test_write.py": tuple(
        f"rlcore/report/{name}.py" for name in ["evaluation", "facts", "samples"]
    ),
    "tests/rlcore/results/test_index.py": ("rlcore/results/kept.py",),
    "tests/schemas/test_data.py": ("schemas/generated.py",),
    "tests/rlcore/models/test_smollm2.py": ("flows/commands/models.py",),
    "tests/flows/commands/test_ask.py": ("rlcore/results/questions.py",),
    "tests/rlcore/supervised/test_sft.py": ("rlcore/supervised/loop.py",),
    "tests/rlcore/rewards/test_calls.py": ("rlcore/rewards/side_by_side.py",),
    "tests/rlcore/rewards/test_worker.py": (
        "rlcore/rewards/environment.py",
        *("rlcore/rewards/child.py", "rlcore/rewards/process.py", "rlcore/rewards/link.py"),
    ),
    "tests/rlcore/rl/test_algorithms.py": tuple(
        f"rlcore/rl/{name}.py" for name in ["loop", "metrics", "phases", "ptx", "reward", "state"]
    ),
    "tests/rlcore/rl/test_advantage.py": ("rlcore/rl/batch.py", "rlcore/rl/scores.py"),
    "tests/rlcore/rl/test_dynamic_sampling.py": ("rlcore/rl/groups.py",),
    "tests/rlcore/sandbox/test_probe.py": ("rlcore/sandbox/attack.py",),
    "tests/rlcore/sandbox/test_sandbox.py": (
        *("rlcore/sandbox/inside.py", "rlcore/sandbox/levels.py"),
    ),
    "tests/rlcore/trajectories/test_collect.py": (
        *("rlcore/rl/rollout.py", "rlcore/trajectories/types.py"),
    ),
}
