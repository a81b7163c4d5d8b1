"""What counts as a word decides which prompts count as repeated."""

from collections.abc import Sequence

import numpy as np
import pytest

from rlcore.data.dedup import BOILERPLATE_ROWS, Boilerplate, gram_hashes, repeated, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Let's add 1,000 + 2.5!", ("let's", "add", "1,000", "+", "2.5")),
        ("3*4=12", ("3", "*", "4", "=", "12")),
        ("NAÏVE Straße", ("naïve", "straße")),
        ("\uff11\uff12 \ufb01sh", ("12", "fish")),
        ("x2 and a_b", ("x", "2", "and", "a", "b")),
        ("12. Then 3, 4", ("12", "then", "3", "4")),
        ("\n ?!\t", ()),
    ],
)
def test_case_width_and_punctuation_make_no_other_word(text: str, words: tuple[str, ...]) -> None:
    assert words_of(text) == words


def grams(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    """Return every run of ``length`` words; the whole text as one where it is shorter: two short
    prompts would else share the empty set and count as equal."""
    return [tuple(words[i : i + length]) for i in range(max(1, len(words) - length + 1))]


def test_hashes_tell_apart_what_runs_of_words_tell_apart() -> None:
    """Two that share a hash would make duplicates of rows that are none."""
    rows = ["a b b a", "b a a b", "a b", "b a", "a", "", "a b c d e f", "b c d e f", "x a b c d e"]
    for length in (1, 2, 4, 5):
        runs = [run for row in rows if row for run in grams(row.split(), length)]
        hashes = [int(one) for row in rows for one in gram_hashes(row.split(), length)]
        assert len(runs) == len(hashes)
        assert len({*zip(runs, hashes, strict=True)}) == len(set(runs)) == len(set(hashes))


def test_what_occurs_once_is_not_repeated() -> None:
    found, counts = repeated(np.array([7, 3, 7, 5, 3, 7], dtype=np.uint64))
    assert (found.tolist(), counts.tolist()) == ([3, 7], [2, 3])
    assert repeated(np.zeros(0, dtype=np.uint64))[0].tolist() == []


def numbered(count: int, ending: str) -> list[tuple[str, ...]]:
    return [words_of(f"q{i} r{i} s{i} t{i} u{i} {ending}") for i in range(count)]


def test_what_many_rows_share_is_stripped_and_their_own_words_stay() -> None:
    texts = numbered(BOILERPLATE_ROWS, "think step by step please")
    stripped = {Boilerplate(texts).strip(words) for words in texts}
    assert stripped == {words[:-5] for words in texts}


def test_what_few_rows_share_is_content() -> None:
    """A question that stands twice is a repetition, not a template."""
    texts = numbered(BOILERPLATE_ROWS - 1, "think step by step please")
    boilerplate = Boilerplate(texts)
    assert [boilerplate.strip(words) for words in texts] == texts


def test_one_row_repeated_many_times_makes_no_boilerplate() -> None:
    words = words_of("Tom has twelve pens and buys thirty")
    assert Boilerplate([words] * 100).strip(words) == words


def test_in_a_large_data_set_two_percent_must_share_it() -> None:
    texts = numbered(BOILERPLATE_ROWS, "think step by step please")
    others = [words_of(f"v{i} w{i} x{i} y{i} z{i}") for i in range(50 * BOILERPLATE_ROWS)]
    assert Boilerplate([*texts, *others]).strip(texts[0]) == texts[0]
