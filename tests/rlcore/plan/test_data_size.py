"""Rows of sources are counted where the recipe or a look at the files tells them."""

from rlcore.plan.data_size import DataSize, data_size, size_of_rows
from schemas.data import (
    AimeSource,
    ArithmeticSource,
    DataSection,
    FileSource,
    Gsm8kSource,
    MathSource,
    ProgramsSource,
)


def test_rows_of_a_source_are_counted_where_the_recipe_says_them() -> None:
    gsm8k = DataSection(sources=(Gsm8kSource(),), validation_fraction=0.1)
    assert data_size(gsm8k) == DataSize(6726, 747, (1319,), 6726)
    bare = Gsm8kSource(limit=100, demonstrations=False)
    assert data_size(DataSection(sources=(bare,))) == DataSize(95, 5, (100,), 0)
    trained = DataSection(sources=(bare,), validation_fraction=0.0)
    assert data_size(trained) == DataSize(100, 0, (100,), 0)
    both = DataSection(sources=(ArithmeticSource(), bare), deduplicate="exact")
    assert data_size(both) == DataSize(4196, 256, (512, 256, 100), 46080)
    programs = ProgramsSource(train=9, test=3)
    assert data_size(DataSection(sources=(programs,), deduplicate="exact")) == DataSize(
        9, 256, (3,), 23040
    )


def test_rows_of_math_and_aime_are_known_where_the_hub_is_read_whole() -> None:
    def size(*sources: MathSource | AimeSource) -> DataSize:
        return data_size(DataSection(sources=sources, validation_fraction=0.1))

    assert size(MathSource(), AimeSource()) == DataSize(6750, 750, (5000, 30), 6750)
    assert size(MathSource(split="train", demonstrations=False)) == DataSize(6750, 750, (), 0)
    assert size(MathSource(limit=100)) == DataSize(90, 10, (100,), 90)
    for part in (MathSource(levels=(5,)), MathSource(path="math"), MathSource(hub_name="a/b")):
        assert size(part).train is None
    assert size(AimeSource(split="validation")).validation == 30
    assert size(AimeSource(path="a.jsonl")).test is None


def test_a_file_is_not_guessed_at() -> None:
    """A plan that is wrong about the data is wrong about every hour after it."""
    sources = (Gsm8kSource(), FileSource(path="rows.jsonl"))
    trained = DataSection(sources=sources, validation_fraction=0.0)
    assert data_size(trained) == DataSize(None, 0, (1319,), None)
    held_out = DataSection(sources=sources, validation_fraction=0.1)
    assert data_size(held_out) == DataSize(None, None, (1319,), None)
    tested = FileSource(path="rows.jsonl", split="test")
    assert data_size(DataSection(sources=(Gsm8kSource(), tested))).test is None


def test_a_file_that_was_looked_at_counts_with_the_others() -> None:
    sources = (Gsm8kSource(), FileSource(path="rows.jsonl"))
    data = DataSection(sources=sources, validation_fraction=0.1)
    size = data_size(data, {1: size_of_rows("train", 200, 50, data)})
    assert size == DataSize(6726 + 180, 747 + 20, (1319,), 6726 + 45)
