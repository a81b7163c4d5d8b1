"""Both sides make the same tokens of the same rows, or their times say nothing."""

import json
from pathlib import Path

from rlcore.data.prepare import prepare
from rlcore.models.ragged import to_arrays
from rlcore.models.tokenizer import train_tokenizer
from schemas.data import DataSection
from tests.bench.peers.preparation import columns_of, ids_of
from tests.bench.preparation import MILLION, Taken, memory_line, rates, rows_of


def test_ours_and_theirs_are_the_same_work(tmp_path: Path) -> None:
    rows = rows_of(20, seed=0)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = train_tokenizer([f"{row['prompt']} {row['completion']}" for row in rows], 400)
    file = {"kind": "file", "path": str(path)}
    data = DataSection.model_validate(
        {
            "sources": [file, {**file, "split": "test"}],
            "deduplicate": "off",
            "decontaminate": False,
            "validation_fraction": 0.0,
        }
    )
    tables = prepare(data, tokenizer=tokenizer, seed=0, sft_max_tokens=None).tables
    prompts = tables["prompts"].filter(split="train")
    taught = tables["demonstrations"]
    made = zip(
        to_arrays(prompts["prompt_ids"]),
        to_arrays(taught["token_ids"]),
        to_arrays(taught["loss_mask"]),
        strict=True,
    )
    for row, (prompt, ids, mask) in zip(rows, made, strict=True):
        asked = [{"role": "user", "content": row["prompt"]}]
        said = [*asked, {"role": "assistant", "content": row["completion"]}]
        theirs = columns_of(
            ids_of(tokenizer, asked, open_turn=True), ids_of(tokenizer, said, open_turn=False)
        )
        ours = {"prompt_ids": prompt, "token_ids": ids, "loss_mask": mask}
        assert {name: values.tolist() for name, values in ours.items()} == theirs


def test_memory_is_a_line_through_two_sizes() -> None:
    slope, expected = memory_line({100: 10.0, 300: 30.0})
    assert slope.value == round(2**20 / 10, 1)
    assert expected.value == round((10_000_000 / 10) / 1024, 2)
    assert not expected.met
    assert memory_line({100: 10.0, 300: 9.0})[0].value == 0


def test_a_million_rows_are_compared_by_time_a_row() -> None:
    theirs = {"datasets.map": Taken(3.0, 1.0), "datasets.map, batched": Taken(1.0, 1.0)}
    few, many, speed, batched = rates(theirs, 10_000, [Taken(2.0, 1.0)], Taken(MILLION / 2e4, 1.0))
    assert (few.value, many.value) == (200.0, 50.0)
    assert (speed.value, batched.value) == (6.0, 2.0)
    assert speed.met
    assert batched.least is None
