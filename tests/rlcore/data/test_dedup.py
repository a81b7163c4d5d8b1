"""Duplicates and contamination: found as by brute force, and not triggered by instructions."""

import random
from itertools import product
from time import process_time

import numpy as np
import polars as pl
import pytest

from rlcore.data.dedup import (
    contaminated,
    exact_duplicates,
    near_duplicates,
    text_hash,
    words_of,
)
from schemas.data import GSM8K_INSTRUCTION, Gsm8kSource
from tests.inputs import GSM8K, reads
from tests.rlcore.data.row_files import read_source
from tests.rlcore.data.test_dedup_words import grams

WORDS = [f"{a}{b}" for a, b in product("bdfgklmnprst", "aeiou")]


def texts(seed: int, count: int, length: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=length)) for _ in range(count)]


def edited(text: str, changes: int, rng: random.Random) -> str:
    words = text.split()
    for at in rng.sample(range(len(words)), changes):
        words[at] = rng.choice(WORDS)
    return " ".join(words)


def hashes(texts: list[str]) -> pl.DataFrame:
    halves = np.frombuffer(b"".join(map(text_hash, texts)), dtype=np.uint64).reshape(-1, 2)
    return pl.DataFrame(halves, schema=["a", "b"])


def test_rows_are_equal_only_where_all_of_the_hash_is() -> None:
    """Half of it is the same in some pair of a few billion rows, one of which would be lost."""
    words = pl.DataFrame({"a": [1, 1, 4, 1, 1], "b": [2, 3, 2, 2, 3]})
    assert exact_duplicates(words) == {3: 0, 4: 1}
    assert exact_duplicates(words[:0]) == {}
    assert exact_duplicates(words[[0, 2, 3]]) == {2: 0}


def test_duplicates_are_those_of_brute_force() -> None:
    drawn = np.random.default_rng(0).integers(0, 40, (300, 2)).astype(np.uint64)
    first: dict[tuple[int, ...], int] = {}
    expected = {}
    for row, pair in enumerate(map(tuple, drawn.tolist())):
        if (kept := first.setdefault(pair, row)) != row:
            expected[row] = kept
    assert expected
    assert exact_duplicates(pl.DataFrame(drawn)) == expected


def test_exact_duplicates_differ_in_white_space_at_most() -> None:
    assert exact_duplicates(hashes(["a b", "a  b\n", "A b", "a b"])) == {1: 0, 3: 0}


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_near_duplicates_are_those_of_brute_force(threshold: float) -> None:
    """An index that misses pairs leaves duplicates in training, unseen."""
    rng = random.Random(1)
    rows = texts(0, 150, 40)
    rows += [edited(rng.choice(rows), rng.randrange(4), rng) for _ in range(150)]
    sets = [set(grams(words_of(row), 5)) for row in rows]
    kept: list[int] = []
    expected = {}
    for i, own in enumerate(sets):
        similar = [k for k in kept if len(own & sets[k]) >= threshold * len(own | sets[k])]
        if similar:
            expected[i] = similar[0]
        else:
            kept.append(i)
    assert expected
    assert near_duplicates(rows, threshold) == expected


def test_problems_that_differ_in_a_number_verb_or_sign_are_no_duplicates() -> None:
    """Templated problems share nearly all words; dropping them would drop the data set."""
    stories = [
        f"In the morning the farmer collects {n} eggs from the old hen house near the river and"
        f" then he {verb} {m} of the eggs at the market. How many eggs are in his basket now?"
        for n in range(10, 40)
        for m, verb in ((7, "buys"), (7, "sells"), (8, "sells"))
    ]
    assert not near_duplicates(stories, 0.9)
    assert not near_duplicates(["Compute 3 + 5", "Compute 3 * 5", "Compute 3 - 5"], 0.9)


def test_a_shared_run_of_13_words_contaminates_and_12_do_not() -> None:
    (run,) = texts(3, 1, 13)
    short = " ".join(run.split()[1:])
    ours = [
        f"{a} {middle} {b}" for middle, (a, b) in ((run, texts(4, 2, 8)), (short, texts(5, 2, 8)))
    ]
    theirs = [f"{a} {run.upper()}! {b}" for a, b in (texts(6, 2, 8),)]
    assert contaminated(ours, theirs) == {0: 0}


def test_a_shared_instruction_does_not_contaminate() -> None:
    """GSM8K's own instruction is a run of 13 words that every prompt ends with."""
    ours = [f"{text} {GSM8K_INSTRUCTION}" for text in texts(7, 60, 25)]
    theirs = [f"{text} {GSM8K_INSTRUCTION}" for text in texts(8, 60, 25)]
    assert not contaminated(ours, theirs)
    assert contaminated([*ours, theirs[5]], theirs) == {60: 5}


def test_short_prompts_are_compared_whole() -> None:
    theirs = ["Tom has 12 pens and buys 30. How many now?", "Compute 3 + 5"]
    ours = [
        "tom has 12 pens, and buys 30: how many now",
        "Tom has 13 pens and buys 30. How many now?",
    ]
    assert contaminated([*ours, "Compute 3 * 5"], theirs) == {0: 0}


@reads(GSM8K / "train.jsonl")
def test_gsm8k_is_screened_in_seconds_and_loses_next_to_nothing() -> None:
    train, test = (
        [f"{row['question']} {GSM8K_INSTRUCTION}" for row in table.rows]
        for table in read_source(Gsm8kSource(path=str(GSM8K)))
    )
    start = process_time()
    duplicates = near_duplicates(train, 0.9)
    held = contaminated(train, test)
    seconds = process_time() - start
    assert not exact_duplicates(hashes(train))
    assert len(duplicates) < 30
    assert len(held) < 75, "more than 1 % of GSM8K cannot be contaminated: boilerplate was counted"
    assert seconds < 12, "screening 7,473 rows takes about 3 s on a calm core"
