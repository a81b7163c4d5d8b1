"""SFT or reward-model training by TRL, in an environment of its own: a JSON line per step.

    python trl_supervised.py JOB

JOB: the JSON of ``tests.bench.supervised.Job``. TRL is not installed beside this project.
"""

import json
import sys

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from trl import (  # pyright: ignore[reportMissingImports]
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl_clock import Clock  # pyright: ignore[reportMissingImports]


def main(job):
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    with open(job["rows_file"]) as file:
        rows = Dataset.from_list([json.loads(line) for line in file])
    common = {
        "output_dir": job["folder"],
        "use_cpu": True,
        "bf16": False,
        "gradient_accumulation_steps": 1,
        "learning_rate": job["lr"],
        "lr_scheduler_type": "constant",
        "max_steps": job["steps"],
        "gradient_checkpointing": False,
        "logging_steps": job["steps"],
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": 0,
        "max_length": job["longest"],
    }
    counted = []
    trainer = (_sft if job["kind"] == "sft" else _reward_model)(job, common, tokenizer, rows)
    collate = trainer.data_collator

    def counting(examples):
        counted.append(sum(len(row[key]) for row in examples for key in row if key.endswith("ids")))
        return collate(examples)

    trainer.data_collator = counting
    trainer.add_callback(Clock(lambda n: {"tokens": counted[n]}))
    trainer.train()


def _sft(job, common, tokenizer, rows):
    batch = job["rows"]
    if job["packed"]:
        tokens = sum(len(ids) for ids in rows["input_ids"]) / len(rows)
        batch = max(1, round(batch * tokens / job["longest"]))
    return SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        processing_class=tokenizer,
        args=SFTConfig(
            **common,
            per_device_train_batch_size=batch,
            packing=job["packed"],
        ),
        train_dataset=rows,
    )


def _reward_model(job, common, tokenizer, rows):
    model = AutoModelForSequenceClassification.from_pretrained(
        job["model"], num_labels=1, dtype=torch.float32
    )
    return RewardTrainer(
        model=model,
        processing_class=tokenizer,
        args=RewardConfig(**common, per_device_train_batch_size=job["rows"]),
        train_dataset=rows,
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
