"""Rows of JSON made ready for SFT and RL, by this project or by ``datasets.map`` as users of TRL do
it; the seconds on stdout.

    python -m tests.bench.peers.preparation JOB

JOB: the JSON of ``tests.bench.preparation.Job``.
"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.data.prepare import prepare_files
from rlcore.models.tokenizer import load_tokenizer
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.recipe import Recipe


def main(job: Mapping[str, Any]) -> None:
    """Prepare the rows of ``job``; print how long it took, imports and tokenizer left out."""
    folder = Path(job["folder"])
    tokenizer = load_tokenizer(Path(job["tokenizer"]))
    if job["side"] == "ours":
        print(_ours(job, folder, tokenizer))
    else:
        print(_map(job, folder, tokenizer))


def _ours(job: Mapping[str, Any], folder: Path, tokenizer: Any) -> float:
    """Make the dataset of a store."""
    sources = [
        {"kind": "file", "path": job["train"]},
        {"kind": "file", "path": job["test"], "split": "test"},
    ]
    data = {
        "sources": sources,
        "deduplicate": job["deduplicate"],
        "decontaminate": False,
        "validation_fraction": 0.01,
        "max_reject_fraction": 1.0,
    }
    reward = {"functions": [{"name": "gsm8k"}]}
    model = {"path": job["tokenizer"]}
    recipe = Recipe.model_validate(
        {"name": "preparation", "model": model, "data": data, "reward": reward}
    )
    import schemas.tables  # noqa: F401  an import, which the time leaves out

    store = ArtifactStore(folder / "store")
    start = time.perf_counter()
    with store.scratch() as scratch:
        prepared = prepare_files(recipe, tokenizer, scratch, "dataset")
        store.put("dataset", "rows", tables=prepared.tables, lineage=Lineage("", ""))
    return time.perf_counter() - start


def _map(job: Mapping[str, Any], folder: Path, tokenizer: Any) -> float:
    """Write the ids of prompts and of demonstrations with their masks as Parquet."""
    import datasets

    datasets.disable_progress_bars()

    def one(row: dict[str, Any]) -> dict[str, Any]:
        prompt = [{"role": "user", "content": row["prompt"]}]
        messages = [*prompt, {"role": "assistant", "content": row["completion"]}]
        ids = ids_of(tokenizer, prompt, open_turn=True)
        whole = ids_of(tokenizer, messages, open_turn=False)
        return {"messages": messages, **columns_of(ids, whole)}

    def many(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        prompts = [[{"role": "user", "content": text}] for text in rows["prompt"]]
        answers = [[{"role": "assistant", "content": text}] for text in rows["completion"]]
        messages = [[*asked, *said] for asked, said in zip(prompts, answers, strict=True)]
        ids = ids_of(tokenizer, prompts, open_turn=True)
        whole = ids_of(tokenizer, messages, open_turn=False)
        made = [columns_of(*pair) for pair in zip(ids, whole, strict=True)]
        return {"messages": messages, **{name: [row[name] for row in made] for name in made[0]}}

    start = time.perf_counter()
    rows = datasets.load_dataset(
        "json", data_files=job["train"], split="train", cache_dir=str(folder / "cache")
    )
    is_batched, processes = job["batched"], job["processes"] if job["processes"] > 1 else None
    mapped = rows.map(many if is_batched else one, batched=is_batched, num_proc=processes)
    mapped.to_parquet(str(folder / "rows.parquet"))
    return time.perf_counter() - start


def ids_of(tokenizer: Any, chats: list[Any], *, open_turn: bool) -> list[Any]:
    """Return the token ids of a chat, or of each of several."""
    return tokenizer.apply_chat_template(
        chats, add_generation_prompt=open_turn, tokenize=True, return_dict=False
    )


def columns_of(prompt: list[int], whole: list[int]) -> dict[str, Any]:
    """Return the columns that both trainers read; loss is on what follows the prompt."""
    mask = [False] * len(prompt) + [True] * (len(whole) - len(prompt))
    return {"prompt_ids": prompt, "token_ids": whole, "loss_mask": mask}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
