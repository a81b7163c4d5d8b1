"""Names of other libraries that no table holds: they are like one that a table holds."""

# A line per meaning, as in ``rlcore.recipes.foreign_keys``.
LIKE = """
reward.functions.0.weight: reward.weight reward_scale
data.sources.0.config: data.config dataset_subset
hardware.learner.zero_stage: actor.strategy ds_config zero_optimization
hardware.ray_address: nodes num_nodes ray_init.address ref_num_nodes
name: tracking.run_name wandb_name
store: export.output_dir output_dir root_dir
rl.checkpoint.every: checkpointing.save_period ckpt_interval save_step
reward.functions.0.options: functions.0.args reward_args
data.sources: data.dataset data.train_path data_files data_path dataset_id dataset_names datasets
    eval_prompt_data train_dataset train_file train_path val_data val_dataset val_file
model.path: actor_model_path model.model_name model.name_or_path model.pretrained model_name
    model_path name_or_path policy.model_name
environment.max_turns: multi_turn.max_assistant_turns multi_turn.max_turns
environment.name: env.env_name env_name multi_turn.tool_config_path
rl.algorithm.dynamic_sampling.metric: filter_groups.metric
rl.algorithm.importance_correction.level: rollout_correction.rollout_is
    vllm_importance_sampling_mode
rl.algorithm.policy_loss: policy_loss.loss_mode
rl.algorithm.kl.horizon: kl_ctrl.horizon kl_horizon
rl.algorithm.kl.estimator: kl.penalty kl_estimator
rl.algorithm.kl.coef: init_kl_coeff kl_coeff kl_ctrl.kl_coef kl_loss_coeff kl_penalty_coeff
rl.preset: rl.algo rl.algorithm.name rl.algorithm.preset rl.algorithm.type rl_type
rl.update.optimizer.schedule.kind: lr_scheduler_name lr_scheduler_type schedule.kind scheduler_name
    scheduler_type
rl.update.optimizer.eps: adam_eps optim.eps
evaluate.top_p: val_kwargs.top_p val_top_p
evaluate.temperature: val_kwargs.temperature
evaluate.samples: eval_samples val_kwargs.n
prompts and answers are text: images and video are not supported; leave it out: images_key
scores are not clipped; leave it out: reward_clip_range
rl.rollout.max_staleness: async_level async_training
there is no sequence, context or pipeline parallelism, only ranks of whole sequences; leave it out:
    expert_parallel_size pipeline_model_parallel_size sequence_parallel_size
the value loss has its own optimizer: set rl.critic.optimizer.lr: value_coef vf_coeff
the optimizer is AdamW; set its numbers below rl.update.optimizer: optim_name
there is nothing to set: the pipeline does it by itself, or not at all; leave it out: hub_model
    torch_compile_mode use_torch_compile vllm_enable_sleep_mode vllm_server_port
a run started again continues where it was; leave it out: resume_from
an adapter begins at zero and is not weight-decomposed; leave it out: use_dora
rl.update.optimizer.schedule: scheduler_kwargs
rl.update.optimizer: optim_args optimizer_kwargs optimizer_params
hardware.learner.gpus_per_rank: gpus_per_actor reward_num_gpus_per_node
data.sources.0.train: n_train
hardware.learner.threads: omp_num_threads
hardware.learner.attention: attention_implementation flash_attention_2 flash_attn_2
    use_flash_attention use_flash_attn
hardware.learner.gradient_checkpointing: enable_activation_checkpointing
hardware.learner.offload_params: params_offload
hardware.learner.offload_optimizer: optim_offload optimizer_cpu_offload
hardware.learner.ranks: gpus ngpus num_gpus num_gpus_per_node
hardware.rollout.kv_cache_gib: cpu_kvcache_space
hardware.rollout.max_num_seqs: max_concurrent max_num_batched_tokens
hardware.rollout.gpu_memory_utilization: gpu_mem_util
hardware.rollout.tensor_parallel: rollout_num_gpus_per_engine tensor_model_parallel_size
hardware.rollout.engines: num_rollout_workers num_vllm_engines vllm_num_engines
hardware.rollout.engine: engine
tracking.wandb: loggers
tracking.project: project
rl.checkpoint.keep_last: keep_last_n max_critic_ckpt_to_keep
rl.validation.every: eval_interval eval_period eval_step evaluation_strategy val_check_interval
    val_every val_freq
reward.functions: custom_reward_function reward_func reward_funcs reward_function reward_functions
    reward_type verifier
data.deduplicate: dedupe
data.validation_fraction: eval_split val_ratio val_size
data.over_length: truncation_side
data.sources.0.limit: max_examples num_train_samples
data.sources.0.columns: column_map columns
data.sources.0.hub_split: dataset_split dataset_test_split
rl.critic.warmup_iterations: critic_warmup
rl.algorithm.overlong.cache_tokens: overlong_buffer_len overlong_buffer_length
rl.algorithm.dynamic_sampling.max_rounds: max_gen_batches
rl.algorithm.dynamic_sampling: dynamic_filter use_dynamic_filtering
rl.algorithm.mask_truncated: overlong_filter
rl.algorithm.importance_correction.reject: rollout_correction.rollout_rs geo_mask
    outlier_token_threshold_low
rl.algorithm.importance_correction.mode: is_correction_type use_ice_pop
rl.update.old_logprobs: rollout_correction.bypass_mode use_rollout_log_probs
rl.algorithm.importance_correction.cap: imp_ratio_cap is_cap vllm_importance_sampling_cap
rl.algorithm.ratio_level: importance_ratio_level
rl.algorithm.aggregation: use_token_level_loss
rl.algorithm.entropy_coef: entropy_loss_weight
rl.algorithm.kl.target: kl_target target_kl
rl.algorithm.kl.controller: kl_controller kl_ctrl_type use_adaptive_kl
rl.algorithm.kl.where: kl_in_reward kl_loss kl_placement
rl.algorithm.clip_dual: dual_clip_c
rl.algorithm.clip_high: eps_high
rl.algorithm.clip_low: clip_eps clip_epsilon clip_low_ratio clip_range_low cliprange eps_clip
    ppo_clip_range
rl.algorithm.gae.lam_critic: lambda_critic
rl.algorithm.gae.lam: lambd lambda_ lmbda td_lambda
rl.algorithm.norm_by_std: normalize_advantage normalize_reward use_std_normalization
rl.algorithm.advantage: advantage_estimator
rl.update.optimizer.schedule.min_lr_ratio: min_lr_rate
rl.update.optimizer.schedule.warmup_ratio: lr_warmup_steps_ratio warmup_frac
rl.update.optimizer.schedule.warmup_steps: lr_warmup lr_warmup_steps n_warmup_steps num_warmup_steps
rl.update.optimizer.betas: adam_beta2 adam_betas
rl.update.optimizer.grad_clip: clip_gradient gradient_clip_val gradient_clipping max_gradient_norm
hardware.learner.micro_batch_tokens: accumulation_steps forward_max_token_len_per_gpu
    gradient_accumulation log_prob_max_token_len_per_gpu log_prob_micro_batch_size_per_gpu
    logprob_batch_size max_token_len_per_gpu max_tokens_per_gpu micro_batch_size_per_gpu
    per_device_train_batch_size rollout_max_tokens_per_gpu train_micro_batch_size use_dynamic_batch
    use_dynamic_batch_size
rl.update.mini_batches: critic_mini_batch_size policy_mini_batch_size ppo_mini_batch_size
rl.update.epochs: epochs inner_epochs num_ppo_epochs update_epochs_per_batch
rl.iterations: max_num_epochs max_training_steps num_rl_steps num_train_epochs num_train_steps
    num_training_steps total_training_steps train_steps training_epochs
model.stop_tokens: eos_token_id eos_token_ids
rl.rollout.stop: stop_sequence stopwords
model.max_tokens: max_context_length max_len max_model_len max_seq_len max_sequence_length seq_len
    sequence_length vllm_max_model_length
data.max_prompt_tokens: prompt_len prompt_length
rl.rollout.max_new_tokens: completion_length generation_max_length max_gen_len max_generate_length
    max_generation_length max_resp_len response_length
rl.rollout.prompts: generation_batch_size groups_per_batch n_batch num_prompts_per_batch
    num_prompts_per_iteration prompt_batch_size prompts_per_step
rl.rollout.samples: completions_per_prompt generations_per_prompt n_samples_per_prompt
    num_samples_per_prompt
"""
