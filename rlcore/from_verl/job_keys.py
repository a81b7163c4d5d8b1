"""verl's keys of models, data, reward, trainer and environments, and how each is translated."""

from rlcore.from_verl.entries import (
    MODEL,
    REF,
    Entry,
    Part,
    To,
    Unsupported,
    count,
    one_of,
    switch,
    text,
)

ONE_RANK = "is frozen and one rank, which holds the whole model"
REFERENCE = f"a reference, where the KL needs one, {ONE_RANK}"
REWARD_MODEL = f"a reward model as scorer {ONE_RANK}"

_MODELS: dict[str, Entry] = {
    f"{MODEL}.path": Part("data"),
    f"{MODEL}.trust_remote_code": To("model.trust_remote_code", switch),
    f"{MODEL}.custom_chat_template": To("model.chat_template", text),
    f"{MODEL}.enable_gradient_checkpointing": To("hardware.learner.gradient_checkpointing", switch),
    f"{MODEL}.override_config.attn_implementation": To(
        "hardware.learner.attention",
        one_of(flash_attention_2="flash_attention_2", sdpa="sdpa", eager="eager"),
    ),
    f"{MODEL}.override_config.*": Unsupported("the model's own config holds", True),
    f"{MODEL}.lora_rank": Unsupported("LoRA is not supported: all weights are trained", True),
    f"{MODEL}.lora_alpha": Unsupported("read by lora_rank only"),
    f"{MODEL}.target_modules": Unsupported("read by lora_rank only"),
    f"{MODEL}.exclude_modules": Unsupported("read by lora_rank only"),
    f"{MODEL}.use_remove_padding": Unsupported("sequences are always packed"),
    **{
        f"{MODEL}.{key}": Unsupported("speed or place only")
        for key in (
            *("use_shm", "enable_activation_offload", "use_liger"),
            *("use_fused_kernels", "fused_kernel_options.*"),
        )
    },
    f"{MODEL}.tokenizer_path": Unsupported("the tokenizer is that of model.path", True),
    f"{MODEL}.external_lib": Unsupported("no library is imported for the model", True),
    f"{REF}.log_prob_*": Unsupported("forward passes use hardware.learner.micro_batch_tokens"),
    f"{REF}.ulysses_sequence_parallel_size": Unsupported("no sequence parallelism", off=(1,)),
    f"{REF}.model": Unsupported("the reference is the policy that RL starts from", True),
    f"{REF}.profiler.*": Unsupported("phases are timed by the run itself"),
    f"{REF}.rollout_n": Unsupported("repeats rollout.n"),
    **{
        f"{REF}.{key}": Unsupported(REFERENCE)
        for key in (
            *("strategy", "use_torch_compile", "fsdp_config.*", "megatron.*", "entropy_*"),
            *("use_remove_padding", "pad_to_length"),
        )
    },
    "actor_rollout_ref.hybrid_engine": Unsupported("learner and engines are workers of their own"),
    "actor_rollout_ref.nccl_timeout": Unsupported("set hardware.timeouts"),
}

_DATA: dict[str, Entry] = {
    "data.train_files": Part("data"),
    "data.val_files": Part("data"),
    "data.max_prompt_length": Part("data"),
    "data.max_response_length": Part("data"),
    "data.truncation": Part("data"),
    "data.filter_overlong_prompts": Part("data"),
    "data.train_batch_size": Part("batches"),
    "data.gen_batch_size": Part("filter_groups"),
    "data.seed": To("seed", count),
    "data.shuffle": Unsupported("prompts are always shuffled", True, off=(True,), is_on=True),
    "data.prompt_key": Unsupported(
        "prompts are read from the column prompt", True, off=("prompt",)
    ),
    "data.reward_fn_key": Part("data"),
    "data.tokenizer": Unsupported("the model's own tokenizer is used", True),
    "data.trust_remote_code": Unsupported("model.trust_remote_code applies to the tokenizer too"),
    "data.val_batch_size": Unsupported("validation takes all of rl.validation.prompts at once"),
    "data.custom_cls.*": Unsupported(
        "give the files in one of the forms that data.sources reads", True, off=("null",)
    ),
    "data.sampler.*": Unsupported("prompts are drawn in shuffled epochs", True),
    "data.datagen.*": Unsupported("prompts come from data.sources", True),
    "data.apply_chat_template_kwargs.*": Unsupported(
        "the chat template is called without options", True
    ),
    **{
        f"data.{key}": Unsupported("loading only")
        for key in (
            *("use_shm", "return_*", "dataloader_num_workers", "validation_shuffle"),
            *("filter_overlong_prompts_workers", "tool_config_path", "function_tool_path"),
        )
    },
    **{
        f"data.{split}_max_samples": Unsupported(
            "all rows are read; set data.sources[].limit", True, off=(-1,)
        )
        for split in ("train", "val")
    },
    **{f"data.{key}": Part("media") for key in ("image_key", "video_key", "audio_key")},
    **{
        f"data.{key}": Unsupported("read for images, video and audio only")
        for key in ("image_patch_size", "mm_*")
    },
}

_REWARD: dict[str, Entry] = {
    "reward_model.enable": Part("reward"),
    "custom_reward_function.path": Part("reward"),
    "custom_reward_function.name": Part("reward"),
    "custom_reward_function.reward_kwargs": Part("reward"),
    "custom_reward_function.reward_kwargs.*": Part("reward"),
    "reward_model.model.path": Unsupported(
        "the reward model is trained by the stage reward_model, not loaded"
    ),
    "reward_model.model.*": Unsupported(REWARD_MODEL),
    "reward_model.reward_manager": Unsupported("rewards are scored row by row in worker processes"),
    "reward_model.max_length": Unsupported("set reward_model.max_tokens"),
    "reward_model.reward_kwargs.max_resp_len": Part("overlong"),
    **{
        f"{place}.{key}": Part("overlong")
        for place in (
            "reward_model.overlong_buffer",
            "reward_model.reward_kwargs.overlong_buffer_cfg",
        )
        for key in ("enable", "len", "penalty_factor")
    },
    "reward_model.overlong_buffer.log": Unsupported("shaping is always recorded"),
    "reward_model.reward_kwargs.overlong_buffer_cfg.log": Unsupported("shaping is always recorded"),
    "reward_model.sandbox_fusion.url": Part("reward"),
    "reward_model.sandbox_fusion.max_concurrent": Unsupported("set hardware.reward_workers"),
    "reward_model.sandbox_fusion.*": Unsupported("the sandbox is this machine's own"),
    **{
        f"reward_model.{key}": Unsupported("layout only")
        for key in (
            *("strategy", "micro_batch_size*", "use_dynamic_bsz", "forward_max_token_len_per_gpu"),
            *("ulysses_sequence_parallel_size", "launch_reward_fn_async", "profiler.*"),
            *("num_workers", "enable_resource_pool", "n_gpus_per_node", "nnodes"),
        )
    },
}

_TRAINER: dict[str, Entry] = {
    "trainer.total_epochs": Part("batches"),
    "trainer.total_training_steps": Part("batches"),
    "trainer.critic_warmup": Part("critic"),
    "trainer.project_name": To("tracking.project", text),
    "trainer.experiment_name": Part("names"),
    "trainer.logger": Part("names"),
    "trainer.n_gpus_per_node": Part("layout"),
    "trainer.nnodes": Part("layout"),
    "trainer.test_freq": Part("bookkeeping"),
    "trainer.save_freq": Part("bookkeeping"),
    "trainer.max_actor_ckpt_to_keep": To("rl.checkpoint.keep_last", count),
    "trainer.max_critic_ckpt_to_keep": Unsupported("actor and critic are one checkpoint"),
    "trainer.device": Part("layout"),
    "trainer.val_only": Part("evaluation"),
    "trainer.val_before_train": Unsupported("the stage evaluate also evaluates the base model"),
    "trainer.resume_mode": Unsupported("a run started again always continues"),
    "trainer.resume_from_path": Part("bookkeeping"),
    "trainer.default_local_dir": Unsupported("set store"),
    "trainer.default_hdfs_dir": Unsupported("set store to an object store's URL"),
    "trainer.rollout_data_dir": Unsupported("every rollout is in the store"),
    "trainer.validation_data_dir": Unsupported("every completion is in the store"),
    "trainer.log_val_generations": Unsupported("set evaluate.completions_shown"),
    "trainer.balance_batch": Unsupported("micro-batches are packed by length"),
    **{
        f"trainer.{key}": Unsupported("running of verl's own processes")
        for key in (
            *(
                "del_local_ckpt_after_load",
                "ray_wait_register_center_timeout",
                "esi_redundant_time",
            ),
            *(
                "use_legacy_worker_impl",
                "npu_profile.*",
                "profile_steps",
                "worker_nsight_options.*",
            ),
            *("controller_nsight_options.*",),
        )
    },
    **{
        key: Unsupported("running of verl's own processes")
        for key in ("ray_init.*", "ray_kwargs.*", "global_profiler.*", "hydra.*", "defaults")
    },
    "transfer_queue.*": Unsupported("what passes between phases is Parquet in the store"),
    "env.env_name": Part("environment"),
    "env.max_steps": Part("environment"),
    "env.history_length": Unsupported(
        "an episode is one token stream, in which the policy sees all earlier turns", True
    ),
    "env.seed": Unsupported("derived from the recipe's seed"),
    "env.resources_per_worker.*": Unsupported("set environment.workers"),
    **{
        f"env.{name}.*": Unsupported("set environment.options")
        for name in (
            *("alfworld", "search", "webshop", "sokoban", "healthcare", "mol_optim"),
            *("informal_math", "informal_math_training", "informal_math_evolving"),
        )
    },
}

JOB: dict[str, Entry] = {**_MODELS, **_DATA, **_REWARD, **_TRAINER}
