"""verl's keys of algorithm, actor, critic and rollout, and how each is translated."""

from rlcore.from_verl.entries import (
    ACTOR,
    ROLLOUT,
    Entry,
    Part,
    To,
    Unsupported,
    count,
    number,
    one_of,
    switch,
)

OPTIMIZERS = {f"{ACTOR}.optim": "rl.update.optimizer", "critic.optim": "rl.critic.optimizer"}

_OPTIMIZER: dict[str, Entry] = {
    key: entry
    for theirs, ours in OPTIMIZERS.items()
    for key, entry in {
        f"{theirs}.lr": Part("optimizers"),
        f"{theirs}.weight_decay": Part("optimizers"),
        f"{theirs}.betas": Part("optimizers"),
        f"{theirs}.lr_warmup_steps": Part("optimizers"),
        f"{theirs}.lr_warmup_steps_ratio": Part("optimizers"),
        f"{theirs}.warmup_style": Part("optimizers"),
        f"{theirs}.lr_scheduler_type": Part("optimizers"),
        f"{theirs}.min_lr_ratio": Part("optimizers"),
        f"{theirs}.total_training_steps": Unsupported("counted by the run itself", off=(-1,)),
        f"{theirs}.num_cycles": Unsupported("cosine is half a period", True, off=(0.5,)),
        f"{theirs}.optimizer": Unsupported("the optimizer is AdamW", True, off=("AdamW",)),
        f"{theirs}.optimizer_impl": Unsupported(
            "AdamW is torch's, or DeepSpeed's where it is offloaded"
        ),
        f"{theirs}.zero_indexed_step": Unsupported("the schedule ticks per optimizer step"),
        f"{theirs}.override_optimizer_config": Unsupported("the optimizer is AdamW", True),
        f"{theirs}.clip_grad": Unsupported("set grad_clip"),
    }.items()
}

_ALGORITHM: dict[str, Entry] = {
    "algorithm.adv_estimator": Part("advantage"),
    "algorithm.gamma": Part("advantage"),
    "algorithm.lam": Part("advantage"),
    "algorithm.norm_adv_by_std_in_grpo": Part("advantage"),
    "algorithm.use_kl_in_reward": Part("kl"),
    "algorithm.kl_penalty": Part("kl"),
    "algorithm.kl_ctrl.type": Part("kl"),
    "algorithm.kl_ctrl.kl_coef": Part("kl"),
    "algorithm.kl_ctrl.horizon": Part("kl"),
    "algorithm.kl_ctrl.target_kl": Part("kl"),
    "algorithm.filter_groups.enable": Part("filter_groups"),
    "algorithm.filter_groups.metric": Part("filter_groups"),
    "algorithm.filter_groups.max_num_gen_batches": Part("filter_groups"),
    "algorithm.filter_groups.max_inflight_gen_batches": Unsupported("speed only"),
    "algorithm.rollout_correction.rollout_is": Part("correction"),
    "algorithm.rollout_correction.rollout_is_threshold": Part("correction"),
    "algorithm.rollout_correction.loss_type": Unsupported("read by bypass_mode only"),
    "algorithm.rollout_correction.*": Unsupported("only truncated importance weights exist", True),
    "algorithm.use_pf_ppo": Unsupported("no preference-feedback resampling of rollouts", True),
    "algorithm.pf_ppo.*": Unsupported("read by use_pf_ppo only"),
}

_ACTOR: dict[str, Entry] = {
    f"{ACTOR}.policy_loss.loss_mode": Part("advantage"),
    f"{ACTOR}.policy_loss.*": Unsupported("read by loss modes that have no counterpart"),
    f"{ACTOR}.loss_agg_mode": Part("advantage"),
    f"{ACTOR}.loss_scale_factor": Unsupported(
        "the horizon of seq-mean-token-sum-norm is the longest response", True
    ),
    f"{ACTOR}.clip_ratio": Part("clips"),
    f"{ACTOR}.clip_ratio_low": Part("clips"),
    f"{ACTOR}.clip_ratio_high": Part("clips"),
    f"{ACTOR}.clip_ratio_c": Part("clips"),
    f"{ACTOR}.use_kl_loss": Part("kl"),
    f"{ACTOR}.kl_loss_coef": Part("kl"),
    f"{ACTOR}.kl_loss_type": Part("kl"),
    f"{ACTOR}.entropy_coeff": To("rl.algorithm.entropy_coef", number),
    f"{ACTOR}.grad_clip": To("rl.update.optimizer.grad_clip", number),
    f"{ACTOR}.ppo_epochs": Part("batches"),
    f"{ACTOR}.shuffle": To("rl.update.shuffle", switch),
    f"{ACTOR}.ppo_mini_batch_size": Part("batches"),
    f"{ACTOR}.ppo_micro_batch_size": Part("batches"),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": Part("batches"),
    f"{ACTOR}.ppo_max_token_len_per_gpu": Part("batches"),
    f"{ACTOR}.use_dynamic_bsz": Part("batches"),
    f"{ACTOR}.tis_imp_ratio_cap": Part("correction"),
    f"{ACTOR}.use_invalid_action_penalty": Part("environment"),
    f"{ACTOR}.invalid_action_penalty_coef": Part("environment"),
    f"{ACTOR}.ulysses_sequence_parallel_size": Unsupported(
        "no sequence parallelism: a rank holds whole sequences", off=(1,)
    ),
    f"{ACTOR}.fsdp_config.param_offload": Part("layout"),
    f"{ACTOR}.fsdp_config.optimizer_offload": Part("layout"),
    f"{ACTOR}.fsdp_config.*": Unsupported("DeepSpeed's ZeRO shards instead of FSDP"),
    f"{ACTOR}.megatron.*": Unsupported("DeepSpeed's ZeRO shards instead of Megatron"),
    f"{ACTOR}.strategy": Unsupported("the learner is DeepSpeed's"),
    f"{ACTOR}.checkpoint.*": Unsupported("a checkpoint holds all that a resumed run needs"),
    f"{ACTOR}.use_torch_compile": Unsupported("speed only"),
    f"{ACTOR}.use_remove_padding": Unsupported("sequences are always packed"),
    f"{ACTOR}.use_fused_kernels": Unsupported("speed only"),
    f"{ACTOR}.entropy_*": Unsupported("entropy is always computed in chunks"),
    f"{ACTOR}.data_loader_seed": Unsupported("derived from the recipe's seed"),
    f"{ACTOR}.rollout_n": Unsupported("repeats rollout.n"),
    f"{ACTOR}.profiler.*": Unsupported("phases are timed by the run itself"),
}

_ROLLOUT: dict[str, Entry] = {
    f"{ROLLOUT}.n": Part("samples"),
    "env.rollout.n": Part("samples"),
    f"{ROLLOUT}.name": Part("layout"),
    f"{ROLLOUT}.temperature": To("rl.rollout.temperature", number),
    f"{ROLLOUT}.top_p": To("rl.rollout.top_p", number),
    f"{ROLLOUT}.top_k": To("rl.rollout.top_k", lambda value: count(value) or -1),
    f"{ROLLOUT}.do_sample": Unsupported(
        "training rollouts are always sampled", True, off=(True,), is_on=True
    ),
    f"{ROLLOUT}.full_determinism": To("rl.full_determinism", switch),
    f"{ROLLOUT}.dtype": To(
        "model.dtype", one_of(bfloat16="bfloat16", float32="float32"), "learner and engine share it"
    ),
    f"{ROLLOUT}.prompt_length": Unsupported("repeats data.max_prompt_length"),
    f"{ROLLOUT}.response_length": Unsupported("repeats data.max_response_length"),
    f"{ROLLOUT}.gpu_memory_utilization": Part("layout"),
    f"{ROLLOUT}.tensor_model_parallel_size": Part("layout"),
    f"{ROLLOUT}.max_num_seqs": To("hardware.rollout.max_num_seqs", count),
    f"{ROLLOUT}.max_model_len": Part("data"),
    f"{ROLLOUT}.val_kwargs.n": Part("evaluation"),
    f"{ROLLOUT}.val_kwargs.temperature": Part("evaluation"),
    f"{ROLLOUT}.val_kwargs.top_p": Part("evaluation"),
    f"{ROLLOUT}.val_kwargs.top_k": Unsupported("evaluation samples without top-k", True, off=(-1,)),
    f"{ROLLOUT}.val_kwargs.do_sample": Unsupported(
        "evaluation gives both the greedy and the sampled figures"
    ),
    **{
        f"{ROLLOUT}.multi_turn.{key}": Part("environment")
        for key in (
            *("enable", "max_assistant_turns", "max_turns", "max_tool_response_length", "format"),
            "tool_config_path",
        )
    },
    f"{ROLLOUT}.multi_turn.interaction_config_path": Unsupported(
        "write the interaction as a class with reset and step (docs/environments.md)", True
    ),
    f"{ROLLOUT}.multi_turn.max_parallel_calls": Unsupported("a turn makes one call", off=(1,)),
    f"{ROLLOUT}.multi_turn.tool_response_truncate_side": Unsupported(
        "the end is cut of what is beyond environment.max_observation_tokens"
    ),
    f"{ROLLOUT}.multi_turn.max_user_turns": Unsupported("set environment.max_turns"),
    f"{ROLLOUT}.multi_turn.*": Unsupported(
        "an episode is one token stream; what was sampled is never encoded again"
    ),
    f"{ROLLOUT}.agent.*": Unsupported("set environment.workers"),
    f"{ROLLOUT}.ignore_eos": Unsupported("a response ends at its stop token", True),
    f"{ROLLOUT}.log_prob_*": Unsupported("forward passes use hardware.learner.micro_batch_tokens"),
    f"{ROLLOUT}.mode": Unsupported("engines are always called together and synchronously"),
    f"{ROLLOUT}.free_cache_engine": Unsupported("engines keep their memory between rollouts"),
    f"{ROLLOUT}.engine_kwargs.*": Unsupported("engines are set up by hardware.rollout"),
    f"{ROLLOUT}.calculate_log_probs": Unsupported(
        "sampler and learner are compared at every iteration"
    ),
    **{
        f"{ROLLOUT}.{key}": Unsupported("engine setting without effect on what is learnt")
        for key in (
            *("enforce_eager", "enable_chunked_prefill", "max_num_batched_tokens", "load_format"),
            *("disable_log_stats", "layered_summon", "cudagraph_capture_sizes", "chat_scheduler"),
            *("over_sample_rate", "multi_stage_wake_up", "update_weights_bucket_megabytes"),
            *("trace.*", "skip_*", "profiler.*", "enable_prefix_caching", "data_parallel_size"),
            *("expert_parallel_size", "pipeline_model_parallel_size", "use_fire_sampling"),
        )
    },
}

_CRITIC: dict[str, Entry] = {
    "critic.cliprange_value": Part("critic"),
    "critic.grad_clip": Part("critic"),
    "critic.enable": Part("critic"),
    "critic.model.path": Part("critic"),
    "critic.ppo_mini_batch_size": Part("critic"),
    "critic.ppo_epochs": Part("critic"),
    "critic.loss_agg_mode": Part("critic"),
    "critic.model.*": Unsupported("the critic is placed like the learner (hardware.learner)"),
    "critic.*micro_batch_size*": Unsupported("the critic uses hardware.learner.micro_batch_tokens"),
    "critic.*max_token_len_per_gpu": Unsupported(
        "the critic uses hardware.learner.micro_batch_tokens"
    ),
    "critic.ulysses_sequence_parallel_size": Unsupported("no sequence parallelism", off=(1,)),
    **{
        f"critic.{key}": Unsupported("the critic is trained as the actor is")
        for key in (
            *("strategy", "rollout_n", "use_dynamic_bsz", "shuffle", "checkpoint.*"),
            *("profiler.*", "megatron.*", "nccl_timeout", "data_loader_seed", "fsdp_config.*"),
        )
    },
}

LEARNING: dict[str, Entry] = {**_OPTIMIZER, **_ALGORITHM, **_ACTOR, **_CRITIC, **_ROLLOUT}
