"""verl's keys that its resolved config lists besides those of the other two tables."""

from rlcore.from_verl.entries import ACTOR, MODEL, REF, ROLLOUT, Entry, Unsupported

SPEED = "speed or place only"
ROUTING = "read for mixtures of experts and their replayed routing only"
OTHER_ENGINE = "the learner is DeepSpeed's: its ZeRO shards"

_MODELS: dict[str, Entry] = {
    "model_engine": Unsupported(OTHER_ENGINE),
    f"{MODEL}.hf_config_path": Unsupported("the config is that of model.path", True),
    f"{MODEL}.lora_adapter_path": Unsupported("LoRA is not supported", True),
    f"{MODEL}.lora.rank": Unsupported("LoRA is not supported: all weights are trained", True),
    f"{MODEL}.lora.*": Unsupported("read by lora.rank only"),
    f"{MODEL}.tiled_mlp.*": Unsupported(SPEED),
    f"{MODEL}.mtp.enable": Unsupported("one token is predicted at a time", True),
    f"{MODEL}.mtp.*": Unsupported("read by mtp.enable only"),
}

_ACTOR: dict[str, Entry] = {
    **{
        f"{role}.{engine}.*": Unsupported(OTHER_ENGINE)
        for role in (ACTOR, REF)
        for engine in ("veomni", "torchtitan", "automodel")
    },
    f"{ACTOR}.freeze_vision_tower": Unsupported("there is no vision tower"),
    f"{ACTOR}.tau_*": Unsupported("read by the loss sapo only"),
    f"{ACTOR}.calculate_entropy": Unsupported("entropy is recorded at every iteration"),
    f"{ACTOR}.calculate_sum_pi_squared": Unsupported("read by the optimal token baseline only"),
    f"{ACTOR}.qat.enable": Unsupported("training is not quantised", True),
    f"{ACTOR}.qat.*": Unsupported("read by qat.enable only"),
    f"{ACTOR}.pad_to_length": Unsupported(SPEED),
    f"{ACTOR}.use_prefix_grouper": Unsupported(SPEED),
    f"{ACTOR}.router_replay.*": Unsupported(ROUTING),
    f"{REF}.router_replay.*": Unsupported(ROUTING),
}

_ROLLOUT: dict[str, Entry] = {
    f"{ROLLOUT}.seed": Unsupported("derived from the recipe's seed"),
    f"{ROLLOUT}.logprobs_mode": Unsupported("sampler and learner are compared at every iteration"),
    f"{ROLLOUT}.quantization*": Unsupported("engines hold the learner's weights", True),
    f"{ROLLOUT}.qat": Unsupported("training is not quantised", True),
    f"{ROLLOUT}.mtp": Unsupported("read by model.mtp.enable only"),
    f"{ROLLOUT}.enable_rollout_routing_replay": Unsupported(ROUTING),
    f"{ROLLOUT}.moe_*": Unsupported(ROUTING),
    **{
        f"{ROLLOUT}.{key}": Unsupported("engines are set up by hardware.rollout")
        for key in (
            *("nnodes", "n_gpus_per_node", "scheduling_policy", "checkpoint_engine.*"),
            *("prometheus.*", "disaggregation.*"),
        )
    },
}

_REWARD: dict[str, Entry] = {
    **{
        key: Unsupported("the reward model is trained by the stage reward_model, not loaded")
        for key in (
            *("reward_model.rollout.*", "reward_model.reward_loop_*", "reward.reward_model.*"),
        )
    },
    "reward.reward_manager.module.path": Unsupported("rewards are reward.functions", True),
    "reward.reward_manager.*": Unsupported("rewards are scored row by row in worker processes"),
}

_TRAINER: dict[str, Entry] = {
    "critic.fsdp.*": Unsupported("the critic is sharded as the actor is"),
    "critic.loss_scale_factor": Unsupported("the critic is trained as the actor is"),
    "distillation.enabled": Unsupported("there is no teacher", True),
    "distillation.*": Unsupported("read by distillation.enabled only"),
    "trainer.use_v1": Unsupported("running of verl's own processes"),
    "trainer.v1.trainer_mode": Unsupported(
        "every iteration samples with the newest weights", True, off=("sync",)
    ),
    "trainer.v1.*": Unsupported("read by other trainer modes than sync"),
    "skip.*": Unsupported("every rollout is in the store"),
}

CONFIG: dict[str, Entry] = {**_MODELS, **_ACTOR, **_ROLLOUT, **_REWARD, **_TRAINER}
