"""Generated instructions that a rule can check: a sentence with two given words, of a given length.

Test and validation prompts ask for words that no training prompt asks for. A model of 100 M
parameters that follows instructions now and then has a foothold in them without any SFT.
"""

import random
from collections.abc import Iterator
from itertools import combinations

from rlcore.data.drawn import Example
from rlcore.seeds import stream_seed
from schemas.data import InstructionsSource
from schemas.errors import UserError

# Common words that go together in a sentence in any pair.
WORDS = (
    *("river", "stone", "bridge", "garden", "window", "paper", "winter", "summer", "morning"),
    *("evening", "forest", "mountain", "village", "market", "kitchen", "table", "bread", "apple"),
    *("horse", "bird", "fish", "cloud", "rain", "storm", "light", "shadow", "music", "letter"),
    *("friend", "child", "teacher", "doctor", "farmer", "sailor", "train", "boat", "road"),
    *("island", "silver", "golden", "quiet", "bright", "heavy", "gentle", "small", "old", "warm"),
    *("cold", "happy", "green", "blue", "empty", "clean", "tall", "slowly", "together", "again"),
    *("always", "coffee", "sugar", "honey", "candle", "clock", "mirror", "basket", "ladder"),
    *("hammer", "rope", "school", "church", "castle", "harbor", "valley", "desert", "field"),
    *("beach", "city", "street"),
)
SHARES = {"test": 4, "validation": 8}  # one word of so many is of that split alone
LENGTHS = tuple((low, low + 4) for low in range(5, 10))
PHRASES = (
    'Write one sentence of {low} to {high} words with the words "{first}" and "{second}".',
    'Use the words "{first}" and "{second}" in one sentence of {low} to {high} words.',
    'Write a sentence with "{first}" and "{second}" in it. It has {low} to {high} words.',
)
# Two words, and the fewest and most words of a sentence.
Asked = tuple[tuple[str, str], tuple[int, int]]


def words_of(subset: str) -> tuple[str, ...]:
    """Return the words that the prompts of "train", "validation" or "test" ask for."""
    test, validation = SHARES["test"], SHARES["validation"]
    chosen = {
        "test": range(0, len(WORDS), test),
        "validation": range(1, len(WORDS), validation),
    }
    taken = {*chosen["test"], *chosen["validation"]}
    indices = chosen.get(subset, [i for i in range(len(WORDS)) if i not in taken])
    return tuple(WORDS[i] for i in indices)


def prompts(source: InstructionsSource, seed: int) -> Iterator[Example[Asked]]:
    """Yield the prompts of all subsets, distinct ones, a pure function of ``source`` and ``seed``.

    Raises UserError when a subset has too few.
    """
    sizes = {"train": source.train, "validation": source.validation, "test": source.test}
    for subset, size in sizes.items():
        asked = [
            (pair, length, phrase)
            for pair in combinations(words_of(subset), 2)
            for length in LENGTHS
            for phrase in PHRASES
        ]
        if size > len(asked):
            raise UserError(
                f"{subset} = {size} of a source of kind instructions is more than the"
                f" {len(asked)} prompts that there are; lower it"
            )
        rng = random.Random(stream_seed(seed, "instructions", subset))
        for pair, length, phrase in rng.sample(asked, size):
            (first, second), (low, high) = pair, length
            question = phrase.format(first=first, second=second, low=low, high=high)
            yield Example((pair, length), subset, question)


def keeps(asked: Asked) -> dict[str, object]:
    """Return what a response is to keep, in the form of the reward ``instructions``."""
    words, length = asked
    return {"words": list(words), "length": list(length), "sentences": 1}
