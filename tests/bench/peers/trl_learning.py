"""GRPO on the recipe ``smollm2-quickstart`` by TRL, in an environment of its own: a JSON line per
step on stdout, and the trained model in a folder.

    python trl_learning.py JOB

JOB: the JSON of ``tests.bench.learning.Job``. TRL is not installed beside this project.
"""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]
from trl_clock import Clock  # pyright: ignore[reportMissingImports]

sys.path.insert(0, str(Path(__file__).parents[3]))
from rlcore.rewards.instructions import scorer
from rlcore.rewards.types import RewardRow


def main(job):
    torch.set_num_threads(job["threads"])
    score = scorer()
    counted, means = [], []

    def kept(completions, completion_ids, truth, **_):
        counted.append(sum(len(ids) for ids in completion_ids))
        rewards = []
        for said, asked in zip(completions, truth, strict=True):
            row = RewardRow("", "", said[0]["content"], asked, {}, "stop", 0)
            rewards.append(score(row).score)
        means.append(sum(rewards) / len(rewards))
        return rewards

    with open(job["prompts_file"]) as file:
        prompts = [json.loads(line) for line in file]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        args=config(job),
        reward_funcs=kept,
        train_dataset=Dataset.from_list(prompts),
        callbacks=[Clock(lambda n: {"tokens": counted[n], "score": means[n]}, job["mini_batches"])],
    )
    trainer.train()
    trainer.save_model(job["folder"])


def config(job):
    rows = job["prompts"] * job["samples"]
    return GRPOConfig(
        output_dir=job["folder"],
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=rows // job["mini_batches"],
        gradient_accumulation_steps=1,
        steps_per_generation=job["mini_batches"],
        num_generations=job["samples"],
        max_completion_length=job["new_tokens"],
        temperature=job["temperature"],
        top_p=1.0,
        top_k=0,
        beta=0.0,
        epsilon=0.2,
        loss_type="bnpo",  # the mean over the tokens of a mini-batch
        scale_rewards="group",
        learning_rate=job["lr"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=job["warmup_steps"],
        adam_beta1=job["betas"][0],
        adam_beta2=job["betas"][1],
        weight_decay=job["weight_decay"],
        max_grad_norm=job["grad_clip"],
        max_steps=job["iterations"] * job["mini_batches"],
        gradient_checkpointing=False,
        logging_steps=job["iterations"],
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        shuffle_dataset=False,
        seed=job["seed"],
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
