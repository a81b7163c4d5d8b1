"""The datasheet says how many rows are left, and what took the others."""

from rlcore.data.datasheet import datasheet

SUMMARY = {
    "rows_read": {"gsm8k/train.jsonl": 200, "s3://b/own.jsonl": 40},
    "prompts": {"train/openai/gsm8k/train": 180, "test/own/test_steps": 30},
    "demonstrations": {"train": 1180},
    "rejects": {"gsm8k/train.jsonl/near_duplicate": 20, "s3://b/own.jsonl/wrong_type": 10},
    "vocab_size": 512,
    "prompt_tokens_mean": 20.5,
    "prompt_tokens_p95": 40,
    "prompt_tokens_max": 1023,
    "demonstration_tokens_mean": 0.0,
    "demonstration_tokens_p95": 0,
    "demonstration_tokens_max": 0,
}


def test_counts_shares_lengths_and_remedies() -> None:
    sheets = {sheet.title: sheet.rows for sheet in datasheet(SUMMARY)}
    assert sheets["Rows read"] == [("gsm8k/train.jsonl", "200"), ("s3://b/own.jsonl", "40")]
    assert sheets["Prompts"] == [
        ("train", "openai/gsm8k", "train", "180"),
        ("test", "own", "test_steps", "30"),
    ]
    assert sheets["Demonstrations"] == [("train", "1,180")]
    assert sheets["Lengths"][0] == ("prompt tokens", "20.5", "40", "1,023")
    near, wrong = sheets["Rejects"]
    assert near[:4] == ("gsm8k/train.jsonl", "near_duplicate", "20", "10.00%")
    assert "data.near_duplicate_jaccard" in near[4]
    assert wrong == ("s3://b/own.jsonl", "wrong_type", "10", "25.00%", "")
