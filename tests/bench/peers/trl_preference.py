"""DPO or KTO by TRL, in an environment of its own: a JSON line per step.

    python trl_preference.py JOB

JOB: the JSON of ``tests.bench.preference.Job``. Rows come as tokens and in the order of the steps,
so preparation and shuffling are left out.
"""

import json
import sys
from time import perf_counter

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import (  # pyright: ignore[reportMissingImports]
    DPOConfig,
    DPOTrainer,
    KTOConfig,
    KTOTrainer,
)


class Lines(TrainerCallback):
    def __init__(self):
        self.began, self.seconds = perf_counter(), 0.0

    def on_step_begin(self, *_, **__):
        self.began = perf_counter()

    def on_step_end(self, *_, **__):
        self.seconds = perf_counter() - self.began

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "loss" in logs:
            print("STEP " + json.dumps({**logs, "seconds": self.seconds}), flush=True)


def as_given(trainer):
    class AsGiven(trainer):
        def _prepare_dataset(self, dataset, *_, **__):
            return dataset

        def _get_train_sampler(self, train_dataset=None):
            return SequentialSampler(train_dataset or self.train_dataset)

    return AsGiven


def main(job):
    torch.set_num_threads(job["threads"])
    with open(job["rows_file"]) as file:
        rows = [json.loads(line) for line in file]
    config, trainer = {"dpo": (DPOConfig, DPOTrainer), "kto": (KTOConfig, KTOTrainer)}[
        job["algorithm"]
    ]
    args = config(
        output_dir=job["folder"],
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=job["batch"],
        gradient_accumulation_steps=1,
        learning_rate=job["lr"],
        lr_scheduler_type="constant",
        max_steps=len(job["order"]) // job["batch"],
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        precompute_ref_log_probs=True,
        max_length=job["max_tokens"],
    )
    as_given(trainer)(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        args=args,
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        train_dataset=Dataset.from_list([rows[row] for row in job["order"]]),
        callbacks=[Lines()],
    ).train()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
