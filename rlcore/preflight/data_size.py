"""How many rows the sources of a recipe hold, as far as the recipe and looks at files tell."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.data import (
    AIME_ROWS,
    GSM8K_ROWS,
    MATH_HUB,
    MATH_ROWS,
    AimeSource,
    DataSection,
    Gsm8kSource,
    MathSource,
    Source,
)
from schemas.generated import (
    ArithmeticSource,
    EnvironmentSource,
    InstructionsSource,
    ProgramsSource,
)


@dataclass(frozen=True, slots=True)
class DataSize:
    """Rows of the sources before any is rejected; None: not known before prepare_data has run.

    ``test`` has one number per source and subset, as ``evaluate.max_prompts`` caps each of them.
    ``preferences``: rows of the file that ``reward_model.preferences`` reads.
    """

    train: int | None
    validation: int | None
    test: tuple[int, ...] | None
    demonstrations: int | None
    preferences: int | None = None


def data_size(data: DataSection, files: Mapping[int, DataSize] | None = None) -> DataSize:
    """Return how many rows the sources hold.

    ``files``: the sizes of sources whose files have been looked at, by the source's index; of the
    others only what the recipe alone determines is known.
    """
    known, fraction = files or {}, data.validation_fraction
    return total_size(
        known.get(index) or _size_of(source, fraction, data.test_fraction)
        for index, source in enumerate(data.sources)
    )


def size_of_rows(
    split: str,
    prompts: int | None,
    demonstrations: int | None,
    fraction: float,
    test_fraction: float = 0.0,
) -> DataSize:
    """Return the size of a file of one split, None where its numbers are not known.

    ``fraction``: the share of training rows that is kept for validation; ``test_fraction``: that
    for the test.
    """
    if split != "train":
        test = None if prompts is None else (prompts,)
        held = prompts if split == "validation" else 0
        return DataSize(0, held, test if split == "test" else (), 0)
    held = 0 if not fraction else None if prompts is None else _share(prompts, fraction)
    if demonstrations is not None:
        demonstrations -= int(demonstrations * fraction) + int(demonstrations * test_fraction)
    if prompts is None:
        return DataSize(None, held, None if test_fraction else (), demonstrations)
    tested = _share(prompts, test_fraction)
    train = prompts - (held or 0) - tested
    return DataSize(train, held, (tested,) if test_fraction else (), demonstrations)


def _share(rows: int, fraction: float) -> int:
    """Return about how many of ``rows`` are held out: at least one, as ``data.split`` does."""
    return min(rows, max(1, int(rows * fraction))) if fraction else 0


def total_size(sizes: Iterable[DataSize]) -> DataSize:
    """Return the sum of ``sizes``; what is unknown in one is unknown in it."""
    all_of = list(sizes)
    tests = [size.test for size in all_of]
    return DataSize(
        _total(size.train for size in all_of),
        _total(size.validation for size in all_of),
        None if None in tests else tuple(n for test in tests for n in test or ()),
        _total(size.demonstrations for size in all_of),
    )


def _total(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def _size_of(source: Source, fraction: float, tested: float) -> DataSize:
    if isinstance(source, ArithmeticSource):
        test = (source.test, source.test_steps)
        return DataSize(source.train, source.validation, test, source.demonstrations)
    if isinstance(source, EnvironmentSource):
        sizes = source.train_size, source.validation_size, (source.test_size,)
        return DataSize(*sizes, source.demonstrations)
    if isinstance(source, ProgramsSource):
        return DataSize(source.train, source.validation, (source.test,), source.demonstrations)
    if isinstance(source, InstructionsSource):
        return DataSize(source.train, source.validation, (source.test,), 0)
    if isinstance(source, Gsm8kSource):
        rows = {split: min(n, source.limit or n) for split, n in GSM8K_ROWS.items()}
        solved = rows["train"] if source.demonstrations else 0
        train = size_of_rows("train", rows["train"], solved, fraction, tested)
        return total_size([train, size_of_rows("test", rows["test"], 0, fraction, tested)])
    if isinstance(source, MathSource):
        known = source.path is None and source.hub_name == MATH_HUB
        splits = [source.split] if source.split else list(MATH_ROWS)
        return total_size(
            [_size_of_math(source, split, known, fraction, tested) for split in splits]
        )
    if isinstance(source, AimeSource):
        rows = None if source.path else min(AIME_ROWS, source.limit or AIME_ROWS)
        return size_of_rows(source.split, rows, 0, fraction, tested)
    return size_of_rows(source.split, None, None, fraction, tested)


def _size_of_math(
    source: MathSource, split: str, known: bool, fraction: float, tested: float
) -> DataSize:
    rows = None
    if known and not source.levels and not source.types:
        rows = min(MATH_ROWS[split], source.limit or MATH_ROWS[split])
    solved = rows if source.demonstrations and split == "train" else 0
    return size_of_rows(split, rows, solved, fraction, tested)
