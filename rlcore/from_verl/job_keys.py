"""verl's keys of models, data, reward, trainer and environments, and how each is translated."""

from rlcore.from_verl.entries import (
    MODEL,
    REF,
    Entry,
    Lacks,
    Part,
    To,
    count,
    one_of,
    switch,
    text,
)

NO_ENVIRONMENTS = "multi-turn environments are not supported"

_MODELS: dict[str, Entry] = {
    f"{MODEL}.path": Part("data"),
    f"{MODEL}.trust_remote_code": To("model.trust_remote_code", switch),
    f"{MODEL}.custom_chat_template": To("model.chat_template", text),
    f"{MODEL}.enable_gradient_checkpointing": To("hardware.learner.gradient_checkpointing", switch),
    f"{MODEL}.override_config.attn_implementation": To(
        "hardware.learner.attention",
        one_of(flash_attention_2="flash_attention_2", sdpa="sdpa", eager="eager"),
    ),
    f"{MODEL}.override_config.*": Lacks("the model's own config holds", True),
    f"{MODEL}.lora_rank": Lacks("LoRA is not supported: all weights are trained", True),
    f"{MODEL}.lora_alpha": Lacks("read by lora_rank only"),
    f"{MODEL}.target_modules": Lacks("read by lora_rank only"),
    f"{MODEL}.exclude_modules": Lacks("read by lora_rank only"),
    f"{MODEL}.use_remove_padding": Lacks("sequences are always packed"),
    **{
        f"{MODEL}.{key}": Lacks("speed or place only")
        for key in (
            *("use_shm", "external_lib", "enable_activation_offload", "use_liger"),
            *("use_fused_kernels", "fused_kernel_options.*", "tokenizer_path"),
        )
    },
    f"{REF}.fsdp_config.param_offload": Lacks(
        "the frozen reference is placed like the learner: hardware.learner.offload_params"
    ),
    f"{REF}.log_prob_*": Lacks("forward passes use hardware.learner.micro_batch_tokens"),
    f"{REF}.ulysses_sequence_parallel_size": Lacks("no sequence parallelism", off=(1,)),
    f"{REF}.model": Lacks("the reference is the policy that RL starts from", True),
    **{
        f"{REF}.{key}": Lacks("the reference is placed like the learner")
        for key in (
            *("strategy", "use_torch_compile", "fsdp_config.*", "megatron.*", "profiler.*"),
            *("entropy_*", "use_remove_padding", "rollout_n"),
        )
    },
    "actor_rollout_ref.hybrid_engine": Lacks("learner and engines are workers of their own"),
    "actor_rollout_ref.nccl_timeout": Lacks("set hardware.timeouts"),
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
    "data.shuffle": Lacks("prompts are always shuffled", True, off=(True,)),
    "data.prompt_key": Lacks("prompts are read from the column prompt", True, off=("prompt",)),
    "data.reward_fn_key": Lacks(
        "the reward is named in the recipe, not by row", off=("data_source",)
    ),
    "data.tokenizer": Lacks("the model's own tokenizer is used", True),
    "data.trust_remote_code": Lacks("model.trust_remote_code applies to the tokenizer too"),
    "data.val_batch_size": Lacks("validation takes all of rl.validation.prompts at once"),
    "data.custom_cls.*": Lacks(
        "give the files in one of the forms that data.sources reads", True, off=("null",)
    ),
    "data.sampler.*": Lacks("prompts are drawn in shuffled epochs", True),
    "data.datagen.*": Lacks("prompts come from data.sources", True),
    "data.apply_chat_template_kwargs.*": Lacks("the chat template is called without options", True),
    **{
        f"data.{key}": Lacks("loading only")
        for key in (
            *("use_shm", "return_*", "dataloader_num_workers", "validation_shuffle"),
            *("filter_overlong_prompts_workers", "image_key", "video_key", "train_max_samples"),
            *("val_max_samples", "image_patch_size", "mm_*"),
        )
    },
}

_REWARD: dict[str, Entry] = {
    "reward_model.enable": Part("reward"),
    "custom_reward_function.path": Part("reward"),
    "custom_reward_function.name": Part("reward"),
    "custom_reward_function.reward_kwargs.*": Lacks(
        "set reward.functions[0].options in the recipe", True
    ),
    "reward_model.model.path": Lacks(
        "the reward model is trained by the stage reward_model, not loaded"
    ),
    "reward_model.model.*": Lacks("the reward model is placed like the learner"),
    "reward_model.reward_manager": Lacks("rewards are scored row by row in worker processes"),
    "reward_model.max_length": Lacks("set reward_model.max_tokens"),
    "reward_model.reward_kwargs.max_resp_len": Part("overlong"),
    **{
        f"{place}.{key}": Part("overlong")
        for place in (
            "reward_model.overlong_buffer",
            "reward_model.reward_kwargs.overlong_buffer_cfg",
        )
        for key in ("enable", "len", "penalty_factor")
    },
    "reward_model.overlong_buffer.log": Lacks("shaping is always recorded"),
    "reward_model.reward_kwargs.overlong_buffer_cfg.log": Lacks("shaping is always recorded"),
    "reward_model.sandbox_fusion.url": Lacks("no remote sandbox", True),
    "reward_model.sandbox_fusion.*": Lacks("read by sandbox_fusion.url only"),
    **{
        f"reward_model.{key}": Lacks("layout only")
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
    "trainer.max_critic_ckpt_to_keep": Lacks("actor and critic are one checkpoint"),
    "trainer.device": To("hardware.device", one_of(cuda="cuda", cpu="cpu")),
    "trainer.val_only": Lacks("a run always trains; evaluate with a separate recipe", True),
    "trainer.val_before_train": Lacks("the stage evaluate also evaluates the base model"),
    "trainer.resume_mode": Lacks("a run started again always continues"),
    "trainer.resume_from_path": Lacks("a run started again always continues"),
    "trainer.default_local_dir": Lacks("set store"),
    "trainer.default_hdfs_dir": Lacks("set store to an object store's URL"),
    "trainer.rollout_data_dir": Lacks("every rollout is in the store"),
    "trainer.validation_data_dir": Lacks("every completion is in the store"),
    "trainer.log_val_generations": Lacks("set evaluate.completions_shown"),
    "trainer.balance_batch": Lacks("micro-batches are packed by length"),
    **{
        f"trainer.{key}": Lacks("running of verl's own processes")
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
        key: Lacks("running of verl's own processes")
        for key in ("ray_init.*", "ray_kwargs.*", "global_profiler.*", "hydra.*", "defaults")
    },
    "transfer_queue.*": Lacks("what passes between phases is Parquet in the store"),
    "env.env_name": Lacks(f"{NO_ENVIRONMENTS}: an episode has one turn", differs=True),
    "env.max_steps": Lacks(f"{NO_ENVIRONMENTS}: an episode has one turn", differs=True, off=(1,)),
    **{
        f"env.{key}": Lacks(NO_ENVIRONMENTS)
        for key in (
            *("seed", "history_length", "resources_per_worker.*", "alfworld.*", "search.*"),
            *("webshop.*", "sokoban.*", "healthcare.*", "mol_optim.*", "informal_math.*"),
            *("informal_math_training.*", "informal_math_evolving.*"),
        )
    },
}

JOB: dict[str, Entry] = {**_MODELS, **_DATA, **_REWARD, **_TRAINER}
