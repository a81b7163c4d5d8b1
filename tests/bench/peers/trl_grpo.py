"""GRPO by TRL, in an environment of its own: a JSON line per step on stdout.

    python trl_grpo.py JOB

JOB: the JSON of ``tests.bench.grpo.Job``. TRL is not installed beside this project.
"""

import json
import sys

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]
from trl_clock import Clock  # pyright: ignore[reportMissingImports]


def main(job):
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    rows = job["prompts"] * job["samples"]
    config = GRPOConfig(
        output_dir=job["folder"],
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=1,
        num_generations=job["samples"],
        max_completion_length=job["new_tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="grpo",
        learning_rate=job["lr"],
        lr_scheduler_type="constant",
        max_steps=job["steps"],
        gradient_checkpointing=False,
        logging_steps=job["steps"],
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        shuffle_dataset=False,
        seed=0,
    )
    counted = []

    def digits(completions, completion_ids, **_):
        counted.append(sum(len(ids) for ids in completion_ids))
        texts = [each if isinstance(each, str) else each[0]["content"] for each in completions]
        return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in texts]

    with open(job["prompts_file"]) as file:
        prompts = [json.loads(line)["prompt"] for line in file]
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=config,
        reward_funcs=digits,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        peft_config=adapter(job["adapter_rank"]),
        callbacks=[Clock(lambda n: {"tokens": counted[n]})],
    )
    trainer.train()


def adapter(rank):
    if not rank:
        return None
    return LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear", lora_dropout=0.0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
