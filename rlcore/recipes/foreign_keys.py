"""What settings of other libraries are called here: TRL, verl, OpenRLHF, NeMo-RL, axolotl, ...

``KEYS``: their names -> keys of a recipe, the likeliest first; the sections around a name decide
between them (``errors.py``). A dotted name means that ending of a path only. ``ABSENT``: names of
what no key of a recipe expresses -> the reason, or what does it. ``SECTIONS``: names of sections
around a key -> ours. Names that are spelt like one of these need no entry: difflib finds it.
"""

import re

OPTIMIZERS = ("rl.update", "sft", "preference", "rl.critic", "reward_model")

# A line per meaning: keys of a recipe, a colon, their names elsewhere. *: each of OPTIMIZERS.
_KEYS = """
rl.rollout.samples evaluate.samples: num_generations group_size n n_samples num_samples
    samples_per_prompt num_generations_per_prompt rollouts_per_example rloo_k n_rollouts
    num_rollouts_per_prompt num_return_sequences num_responses responses_per_prompt rollout_n
    num_completions best_of num_rollouts k
evaluate.samples: num_generations_eval eval_n_samples_per_prompt num_samples_eval eval_n n_eval
    num_tests_per_prompt val_samples
rl.rollout.prompts sft.batch_size preference.batch_size reward_model.batch_prompts
    rl.validation.prompts: batch_size train_batch_size rollout_batch_size num_prompts_per_step
    num_prompts prompts_per_batch
    prompts_per_iteration global_batch_size gbs bs bsz n_prompts batch effective_batch_size
    train_bsz
rl.algorithm.dynamic_sampling.batch_factor: gen_batch_size oversampling_factor
rl.rollout.max_new_tokens evaluate.max_new_tokens reward_model.preferences.max_new_tokens:
    max_completion_length max_response_length generate_max_len max_new_token max_gen_length
    max_length_generation max_output_tokens max_output_length max_completion_tokens max_response_len
    max_generated_tokens max_gen_tokens response_max_len max_response_tokens num_predict
    rollout.max_length rollout.max_len rollout.max_seq_len generation.max_length sampling.max_length
    max_new_tokens_per_response
evaluate.max_new_tokens: eval_max_tokens eval_max_new_tokens eval_generate_max_len
rl.rollout.max_new_tokens evaluate.max_new_tokens reward_model.preferences.max_new_tokens
    model.max_tokens sft.max_tokens reward_model.max_tokens data.max_prompt_tokens: max_tokens
data.max_prompt_tokens: max_prompt_length prompt_max_len max_prompt_len max_input_length
    max_input_tokens max_prompt_size max_source_length max_prompt_token max_query_length
model.max_tokens sft.max_tokens preference.max_tokens reward_model.max_tokens
    data.max_prompt_tokens: max_length
    max_seq_length sequence_len seq_length max_model_length max_total_sequence_length cutoff_len
    model_max_length context_length context_window n_ctx max_position_embeddings
rl.rollout.stop evaluate.stop evolve.stop reward_model.preferences.stop: stop_strings stop_sequences
    stop_words until
model.stop_tokens: stop_token_ids stop_token eos_token stop_ids
rl.rollout.temperature evaluate.temperature: temp sampling_temperature rollout_temperature
evaluate.temperature: eval_temperature temperature_eval val_temperature eval_temp
evaluate.top_p: eval_top_p
rl.rollout.top_p evaluate.top_p: nucleus top_p_sampling
rl.iterations sft.epochs preference.epochs reward_model.epochs: total_epochs num_epochs num_episodes
    epoch n_epochs total_episodes train_epochs
rl.iterations sft.max_steps preference.max_steps: max_steps total_steps num_steps training_steps
    max_num_steps steps max_train_steps num_iters max_iterations n_iterations iters
    total_iterations num_updates
    total_rollout_steps n_steps max_iters num_rollout num_train_iterations
rl.update.epochs: num_iterations ppo_epochs noptepochs update_epochs num_inner_epochs mu
    num_updates_per_batch epochs_per_batch num_substeps
sft.epochs reward_model.epochs rl.update.epochs: max_epochs sft_epochs
rl.update.mini_batches: num_mini_batches mini_batch_size minibatch_size num_minibatches
    steps_per_generation mini_batch train_global_batch_size num_gradient_updates
    num_updates_per_iteration nminibatches
hardware.learner.micro_batch_tokens sft.batch_size: micro_train_batch_size micro_batch_size
    micro_batch train_micro_batch_size_per_gpu per_device_batch_size mbs
hardware.learner.micro_batch_tokens: gradient_accumulation_steps grad_accum grad_accum_steps
    accumulate_grad_batches ppo_micro_batch_size ppo_micro_batch_size_per_gpu
    ppo_max_token_len_per_gpu log_prob_micro_batch_size use_dynamic_bsz micro_rollout_batch_size
    per_device_eval_batch_size forward_batch_size train_max_tokens_per_gpu
    local_rollout_forward_batch_size per_gpu_train_batch_size max_tokens_per_microbatch
*.optimizer.lr: learning_rate actor_learning_rate actor_lr policy_lr policy_learning_rate peak_lr
    max_lr base_lr step_size lr_actor init_lr
rl.critic.optimizer.lr: critic_learning_rate critic_lr value_lr vf_lr lr_critic
sft.optimizer.lr: sft_lr sft_learning_rate
*.optimizer.grad_clip: max_grad_norm max_norm clip_grad grad_norm clip_grad_norm grad_norm_clip
    grad_clip_norm gradient_clip grad_clipping
*.optimizer.betas: adam_beta1 beta1 beta2
*.optimizer.eps: adam_epsilon
*.optimizer.weight_decay: l2 wd l2_reg weight_decay_rate adam_weight_decay decay
*.optimizer.schedule.kind: lr_scheduler warmup_style lr_schedule lr_decay_style schedule_type
    scheduler.type scheduler.name schedule.type schedule.name lr_scheduler.type scheduler
*.optimizer.schedule.warmup_steps: warmup lr_warmup_iters warmup_iters warmup_iterations_lr
*.optimizer.schedule.warmup_ratio: lr_warmup_ratio warmup_fraction warmup_steps_ratio
*.optimizer.schedule.min_lr_ratio: min_lr lr_min cosine_min_lr_ratio eta_min
rl.preset: algo algorithm.name rl_algorithm trainer_type rl.name algorithm.type rl.type method
rl.algorithm.advantage: adv_estimator adv_type advantage_type estimator_type advantage_fn baseline
    adv advantages
rl.algorithm.norm_by_std: scale_rewards norm_adv_by_std_in_grpo no_advantage_std_norm std_norm
    normalize_advantages normalize_rewards whiten_rewards whiten_advantages norm_adv adv_norm
    grpo_std_normalization advantage_normalization normalize_by_std reward_scaling scale_advantages
rl.algorithm.gae.gamma: discount discount_factor
rl.algorithm.gae.lam: lambda gae_lambda lam_actor
rl.algorithm.gae.lam_critic: critic_lambda
rl.algorithm.clip_low rl.critic.clip: epsilon clip_ratio clip_range clip ppo_clip clip_param
    epsilon_low clip_ratio_low eps_clip_low ratio_clip_min ratio_clip clip_eps_low eps_low clip_min
    eps_clip_low_high policy_clip
rl.algorithm.clip_high: epsilon_high clip_ratio_high eps_clip_high ratio_clip_max clip_eps_high
    clip_max clip_higher clip_range_high cliprange_high
rl.algorithm.clip_dual: delta clip_ratio_c dual_clip ratio_clip_c dual_clip_ratio
rl.algorithm.kl.coef preference.beta: beta
rl.algorithm.kl.coef: kl_coef init_kl_coef kl_beta kl_loss_coef kl_penalty_coef beta_kl
    reference_policy_kl_penalty kl_weight kl_lambda kl_loss_weight kl_coefficient kl_penalty_weight
rl.algorithm.kl.where: use_kl_loss use_kl_in_reward use_kl kl_in_loss kl_mode kl_type_placement
    use_reference_kl use_ref
rl.algorithm.kl.estimator: kl_loss_type kl_penalty kl_type kl.type use_kl_estimator_k3
    kl_penalty_type reference_policy_kl_type kl_approx
rl.algorithm.kl.controller: kl_ctrl kl_ctrl.type adap_kl_ctrl adaptive_kl
rl.algorithm.entropy_coef: entropy_coeff entropy_loss_coef ent_coef entropy_beta entropy_weight
    entropy_bonus entropy_regularization entropy entropy_loss_coeff entropy_coefficient
rl.algorithm.aggregation: loss_type loss_agg_mode loss_aggregation loss_reduction agg_mode
    token_level_loss loss_norm reduction loss_scale_factor
rl.algorithm.policy_loss: loss_mode policy_loss_type loss loss_fn
rl.algorithm.ratio_level: importance_sampling_level ratio_type is_level
    sequence_level_importance_ratios ratio importance_ratio
rl.rollout.max_staleness: async_train max_async_level off_policy_steps max_off_policy_steps
    max_head_offpolicyness staleness_threshold
rl.algorithm.importance_correction.level: vllm_importance_sampling_correction rollout_is use_tis
    enable_vllm_is_correction use_importance_sampling_correction tis tis_ratio_type
    truncated_importance_sampling importance_sampling rollout_importance_sampling_mode
rl.algorithm.importance_correction.mode: vllm_is_correction_type truncated_importance_sampling_type
    icepop use_icepop
rl.algorithm.importance_correction.low: tis_clip_low truncated_importance_sampling_ratio_min
    vllm_importance_sampling_clip_min
rl.algorithm.importance_correction.cap: tis_imp_ratio_cap rollout_is_threshold tis_cap
    vllm_is_truncated_threshold importance_sampling_cap truncated_importance_sampling_ratio
    tis_clip token_tis_ratio_clip_high sequence_tis_ratio_clip_high
    vllm_importance_sampling_clip_max rollout_importance_sampling_threshold
rl.algorithm.importance_correction.reject: rollout_rs rollout_rs_threshold
    rejection_sampling sequence_mask_metric product_mask_low product_mask_high
    geo_mask_low geo_mask_high outlier_token_is_threshold_low outlier_token_is_threshold_high
    rollout_token_veto_threshold seq_logprob_error_threshold
rl.update.old_logprobs: bypass_mode use_rollout_logprobs recompute_logprobs
rl.algorithm.mask_truncated: mask_truncated_completions overlong_filtering mask_overlong
    filter_truncated ignore_truncated
rl.algorithm.dynamic_sampling: dynamic_filtering filter_groups use_dynamic_sampling
    filter_groups.enable dynamic_sampling.enable dynamic_sampling.enabled zero_variance_filter
    group_filter filter_zero_std dynamic_sampling.type
rl.algorithm.dynamic_sampling.metric: filter_metric
rl.algorithm.dynamic_sampling.max_rounds: max_num_gen_batches
rl.algorithm.overlong: overlong_buffer overlong_buffer.enable overlong_penalty soft_overlong
    overlong_reward_shaping overlong_buffer_cfg.enable soft_punish missing_eos_penalty
    length_penalty non_stop_penalty
rl.algorithm.overlong.cache_tokens: overlong_buffer.len overlong_buffer_cfg.len soft_punish_cache
rl.algorithm.overlong.factor: overlong_penalty_factor penalty_factor
rl.critic.clip: value_clip cliprange_value vf_clip value_clip_range clip_range_vf
rl.critic.warmup_iterations: freezing_actor_steps value_warmup critic_warmup_steps
rl.critic.init: critic_pretrain value_model critic.model.path critic_model value_pretrain
environment.name: multi_turn tools multi_turn.enable agent tool_config_path env.name
environment.max_turns: num_turns max_tool_calling_iterations max_tool_calls env.max_steps
    max_assistant_turns
environment.workers: num_envs
rl.ptx.coef: ptx_coef ptx_loss_coef
rl.ptx.path: pretrain_data
model.path: model_name_or_path pretrain base_model pretrained policy_model hf_model model_id
    checkpoint_path pretrained_model model.name sft_model_path hf_checkpoint model.id actor_model
    pretrained_model_name_or_path llm model.base path_or_name model.dir model.directory
    model.checkpoint model.hf_name
model.revision: model_revision
model.dtype: bf16 fp16 torch_dtype param_dtype precision mixed_precision data_type half bfloat16
    compute_dtype model_dtype bf16_full_eval use_bf16
model.chat_template: custom_chat_template chat_template_path apply_chat_template input_template
model.trust_remote_code: trust_remote trust_code
data.sources: dataset dataset_name train_files val_files prompt_data dataset_path eval_dataset
    test_files train_data dataset_config data.path data.name data.train data.source data.files
    validation_dataset test_dataset data_dir data.test prompts_path
data.sources.0.hub_split: dataset_train_split prompt_split
data.sources.0.columns: prompt_key input_key label_key answer_key ground_truth_key reward_fn_key
    prompt_column answer_column label_column column_mapping field_mapping solution_key prompt_field
    answer_field dataset_text_field messages_key question_key solution_column response_key
data.sources.0.limit reward_model.preferences.limit: max_samples max_train_samples train_max_samples
    max_rows subset_size num_examples n_rows
data.over_length: truncation filter_overlong_prompts truncate
data.validation_fraction: val_set_size val_split test_size validation_split val_fraction
    validation_ratio eval_fraction
data.deduplicate: dedup deduplication remove_duplicates dedup_method
data.filters: filter filter_fn filtering row_filter where
sft.enabled: do_sft run_sft use_sft skip_sft sft.enable warm_start
sft.batch_size: sft_batch_size
reward.functions: reward_fn remote_rm_url custom_reward_function.path custom_reward_function.name
    reward_manager reward_weights verifiers reward.name reward.function reward.path rubric
    reward_pretrain grader reward.type agent_func_path reward.fn
reward.functions.0.options: reward_kwargs kwargs reward_options functions.0.params
    functions.0.parameters functions.0.config
reward.timeout_s: reward_timeout timeout timeout_seconds verifier_timeout
reward.offset: reward_shift reward_baseline reward_bias
reward_model: reward_model.enable reward_model.enabled reward_model_path use_rm rm use_reward_model
reward_model.preferences: preference_data preference_dataset preference_path
rl.validation.every: test_freq eval_steps eval_freq val_period evaluation_steps val_interval
    eval_every validation_interval validate_every eval_strategy test_every
rl.validation.prompts: val_batch_size eval_batch_size max_val_samples val_max_samples eval_prompts
    num_eval_samples num_val_prompts n_eval_prompts
rl.validation.patience: early_stopping_patience early_stopping
rl.validation.stop_at: early_stop_threshold target_accuracy target_reward stop_accuracy
evaluate.max_prompts: max_eval_samples eval_max_samples num_eval_prompts eval_limit evaluate.prompts
    evaluate.num_prompts evaluate.limit
evaluate.pass_k: pass_at_k pass_at k_values pass@k evaluate.k evaluate.ks
evaluate.completions_shown: log_val_generations num_completions_to_print log_completions
    num_val_samples_to_print num_samples_to_log
rl.checkpoint.every sft.checkpoint_every preference.checkpoint_every reward_model.checkpoint_every:
    save_steps save_freq
    save_interval save_every checkpoint_interval save_period checkpoint_freq checkpoint_steps
    ckpt_freq save_strategy
rl.checkpoint.keep_last: save_total_limit max_ckpt_num max_actor_ckpt_to_keep max_checkpoints keep
    keep_checkpoints keep_top_k max_to_keep num_checkpoints_to_keep
rl.checkpoint.keep_best: load_best_model_at_end metric_for_best_model save_best
store: save_path ckpt_path default_local_dir output_path checkpoint_dir save_dir out_dir log_dir
    logging_dir save ckpt_dir default_hdfs_dir checkpoint_path_dir results_dir output artifact_dir
    working_dir log_path save_folder export.path export.dir export.directory rl.checkpoint.path
    rl.checkpoint.dir
export.dtype: save_dtype export_dtype
name: experiment_name run_name exp_name wandb_run_name run_id job_name trial_name tracking.name
    wandb.name
tracking.project: project_name wandb_project
tracking.entity: wandb_entity wandb_org wandb_team wandb_group
tracking.wandb: report_to use_wandb logger wandb_mode tracker wandb_enabled log_with
seed: data_seed random_seed random_state rng_seed seeds global_seed torch_seed data_loader_seed
hardware.rollout.engine: use_vllm rollout.name inference_engine inference_backend rollout_backend
    backend sampler rollout_engine generation_backend vllm_mode use_transformers_paged
hardware.rollout.engines: num_engines num_inference_engines rollout_workers vllm_data_parallel_size
    num_workers_rollout rollout_num_gpus
hardware.rollout.tensor_parallel: vllm_tensor_parallel_size tensor_parallel_size tp tp_size
    inference_engine_tensor_parallel_size num_gpus_per_engine
hardware.rollout.gpu_memory_utilization: vllm_gpu_memory_utilization gpu_memory_fraction
    gpu_memory_util mem_fraction_static gpu_memory vllm_gpu_util gpu_utilization
hardware.rollout.max_num_seqs: max_num_sequences max_running_requests max_concurrency max_batch_size
    vllm_generate_batch_size max_num_batched_seqs
hardware.rollout.kv_cache_gib: kv_cache_space swap_space kv_cache_size
hardware.learner.ranks: n_gpus_per_node actor_num_gpus_per_node world_size n_gpus num_processes
    nproc_per_node gpus_per_node data_parallel_size dp_size num_devices devices
    policy_num_gpus_per_node trainer_gpus num_learners dp ranks_per_node
hardware.ray_address: nnodes actor_num_nodes ray_init address critic_num_nodes reward_num_nodes
hardware.learner.zero_stage: deepspeed zero deepspeed_stage fsdp zero_optimization.stage
    deepspeed_config sharding_strategy zero_level fsdp_config sharding strategy
hardware.learner.offload_optimizer: adam_offload optimizer_offload cpu_offload offload
hardware.learner.offload_params: param_offload offload_param cpu_offload_params
hardware.learner.gradient_checkpointing: enable_gradient_checkpointing activation_checkpointing
    use_gradient_checkpointing recompute grad_checkpointing gradient_checkpoint
hardware.learner.attention: attn_implementation flash_attn flash_attention attn attn_impl
hardware.learner.row_tokens: packing packing_samples pack_sequences sample_packing
hardware.learner.threads hardware.rollout.threads: num_threads cpu_threads
hardware.reward_workers: reward_num_workers num_reward_workers reward_processes
hardware.device: use_cpu no_cuda accelerator device_type device_map
hardware.cluster: colocate_all_models colocate launcher distributed_backend use_ray
hardware.timeouts: ddp_timeout nccl_timeout vllm_server_timeout
data.sources.0.train: num_train train_size num_train_prompts
data.sources.0.config: dataset_config_name data.subset
reward.functions.0.weight: reward.scale reward_coef reward_weight
hardware.learner.gpus_per_rank: critic_num_gpus_per_node ref_num_gpus_per_node num_gpus_per_actor
    num_gpus_per_rank
model.max_tokens: context max_context
model.adapter: use_peft peft peft_config lora use_lora lora_config
model.adapter.rank: lora_rank lora_r
model.adapter.alpha: lora_alpha
model.adapter.targets: lora_target_modules target_modules
model.adapter.rslora: use_rslora
model.adapter.base: load_in_4bit qlora use_qlora bnb_4bit_quant_type
rl.critic: critic.enable critic.enabled use_critic
rl.algorithm.overlong.max_tokens: reward_kwargs.max_resp_len overlong_max_len
rl.update.optimizer sft.optimizer rl.critic.optimizer reward_model.optimizer: optimizer_args
*.optimizer.schedule: lr_scheduler_kwargs
reward.functions.0.name: functions.0.fn functions.0.func functions.0.function functions.0.path
    functions.0.module functions.0.kind functions.0.type functions.0.id
"""
# A line per reason.
_ABSENT = """
an adapter has no dropout, which the ratios and the KL would measure; leave it out: lora_dropout
an adapter begins at zero and is not weight-decomposed; leave it out: use_dora init_lora_weights
    lora_init modules_to_save lora_path
training samples from the whole distribution, which the ratios assume; leave it out: min_p
    repetition_penalty presence_penalty frequency_penalty do_sample num_beams no_repeat_ngram_size
    typical_p
a run started again continues where it was; leave it out: resume_from_checkpoint resume_mode resume
    load_checkpoint load_ckpt auto_resume resume_from_path
every iteration is logged and every rollout kept; leave it out: logging_steps log_interval log_every
    logging_strategy log_freq logging_first_step verbose log_level rollout_data_dir
    log_every_n_steps
weights are quantised below an adapter alone (model.adapter.base); leave it out: load_in_8bit
    quantization bnb_4bit_compute_dtype fp8 use_fp8
there is nothing to set: the pipeline does it by itself, or not at all; leave it out:
    dataloader_num_workers num_workers remove_unused_columns use_remove_padding push_to_hub
    hub_model_id torch_compile compile sync_ref_model ref_model_mixup_alpha ref_model_sync_steps
    enforce_eager free_cache_engine disable_dropout ds3_gather_for_generation tf32 use_liger_kernel
    shuffle_dataset pin_memory ddp_find_unused_parameters enable_prefix_caching balance_batch
    vllm_enable_sleep vllm_server_host deepspeed_enable_sleep use_liger_loss enable_chunked_prefill
    val_before_train val_only load_format dropout label_smoothing_factor hybrid_engine
    vllm_sync_backend top_entropy_quantile dataset_num_proc aux_loss_coef save_hf_ckpt
    disable_ds_ckpt enable_ema ema_beta save_contents calculate_log_probs return_raw_chat use_shm
    enable_activation_offload use_fused_kernels model_init_kwargs cast_lm_head_to_fp32
    pad_to_multiple_of chat_template_kwargs cache_implementation vllm_server_base_url
    vllm_guided_decoding_regex wandb_log_unique_prompts eval_on_start do_train do_eval
    group_by_length auto_find_batch_size neftune_noise_alpha use_bias_correction_kl
    center_rewards_coefficient hub_strategy hub_token hub_private_repo layered_summon engine_kwargs
    optimizer_impl filter_overlong_prompts_workers num_proc preprocessing_num_workers
    ignore_data_skip include_tokens_per_second torch_empty_cache_steps shuffle_prompts external_lib
    use_liger rollout.mode optim_target_modules dataloader_drop_last dataloader_pin_memory
    dataloader_prefetch_factor dataloader_persistent_workers ddp_backend ddp_bucket_cap_mb
    average_tokens_across_devices accelerator_config greater_is_better hub_always_push hub_revision
    include_num_input_tokens_seen label_names local_rank parallelism_config prediction_loss_only
    save_on_each_node save_only_model skip_memory_metrics torch_compile_backend use_cache
    disable_tqdm enable_jit_checkpoint ignore_eos disable_log_stats cudagraph_capture_sizes
    multi_stage_wake_up use_fire_sampling use_pf_ppo del_local_ckpt_after_load profile_steps
    use_legacy_worker_impl enable_resource_pool launch_reward_fn_async validation_shuffle
    override_optimizer_config num_cycles length_column_name eval_delay log_on_each_node
    logging_nan_inf_filter validation_data_dir
the optimizer is AdamW; set its numbers below rl.update.optimizer: optim optimizer_type
    optimizer.name optimizer.type optimizer_name optimizer.kind optim.name optim.type
    optim.optimizer
the reference is the policy that RL starts from, and rl.algorithm.kl says whether it is used:
    ref_model reference_model ref_model_path ref_pretrain reference_free
give it a name in the section reward_models, with its path; the stage reward_model trains one:
    reward_model.model.path reward_model.path reward_model.name reward_model.model rm_path
the value loss has its own optimizer: set rl.critic.optimizer.lr: vf_coef value_loss_coef
    critic_loss_coef value_loss_weight
there is no sequence, context or pipeline parallelism, only ranks of whole sequences; leave it out:
    ring_attn_size ulysses_sequence_parallel_size sp_size context_parallel_size
    pipeline_parallel_size cp_size pp_size pp cp ep
weights are not divided by their mean, which would hide their bias; leave it out:
    rollout_is_batch_normalize tis_batch_normalize
responses are not masked by the policy under way; set rl.algorithm.importance_correction.reject,
    which masks by the policy before the update: off_policy_mask_threshold use_opsm opsm_delta
scores are not clipped; leave it out: clip_reward reward_clip reward_clipping
the tokenizer is the model's own; leave it out: tokenizer tokenizer_path tokenizer_name
    tokenizer_name_or_path use_fast_tokenizer
the loss is on the assistant's turns always; leave it out: assistant_only_loss completion_only_loss
    train_on_inputs train_on_prompt
prompts are always drawn in shuffled order; leave it out: data.shuffle shuffle_data
rows of all sources are joined; set limit on a source: prompt_data_probs dataset_probs dataset_mixer
    mixing_weights
prompts and answers are text: images and video are not supported; leave it out: image_key video_key
    image_patch_size limit_images mm_processor_kwargs
"""


def by_name(text: str) -> dict[str, str]:
    """Return the part before the last ``": "`` of each entry, by the names behind it. Lines that
    begin with spaces continue the entry above."""
    entries = [line.rpartition(": ") for line in re.sub(r"\n +", " ", text.strip()).split("\n")]
    return {name: meaning for meaning, _, names in entries for name in names.split()}


def _spelt_out(keys: str) -> tuple[str, ...]:
    if keys.startswith("*"):
        return tuple(f"{section}{keys[1:]}" for section in OPTIMIZERS)
    return tuple(keys.split())


KEYS = {name: _spelt_out(keys) for name, keys in by_name(_KEYS).items()}
ABSENT = by_name(_ABSENT)

# Sections around a key, in other libraries and in short: the sections of a recipe that they mean.
SECTIONS: dict[str, str] = {
    **dict.fromkeys(("actor", "policy", "train", "training"), "update"),
    **dict.fromkeys(("value", "value_model", "value_function", "vf"), "critic"),
    **dict.fromkeys(("eval", "evaluation", "evaluator", "test", "val_kwargs"), "evaluate"),
    **dict.fromkeys(("val",), "validation"),
    **dict.fromkeys(("generation", "sampling", "sampling_params", "sampler"), "rollout"),
    **dict.fromkeys(("vllm", "inference", "generation_kwargs", "generate"), "rollout"),
    **dict.fromkeys(("ref", "reference", "kl_ctrl", "kl_loss"), "kl"),
    **dict.fromkeys(("optim", "adam", "adamw"), "optimizer"),
    **dict.fromkeys(("lr_scheduler", "scheduler", "lr_schedule"), "schedule"),
    **dict.fromkeys(("dataset", "datasets"), "data"),
    **dict.fromkeys(("trainer", "grpo", "ppo", "dapo", "rlhf", "grpo_config", "rloo"), "rl"),
    **dict.fromkeys(("rm", "reward_modeling"), "reward_model"),
    **dict.fromkeys(("dpo", "kto", "dpo_config", "kto_config", "preferences"), "preference"),
    **dict.fromkeys(("rewards", "reward_fn"), "reward"),
    **dict.fromkeys(("resources", "system", "cluster", "distributed", "deepspeed"), "hardware"),
    **dict.fromkeys(("logging", "wandb", "tracker", "logger"), "tracking"),
    **dict.fromkeys(("checkpointing", "ckpt", "save", "saving", "checkpoints"), "checkpoint"),
}
