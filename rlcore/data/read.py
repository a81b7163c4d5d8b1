"""All rows of a recipe's sources, before any filter."""

from collections import Counter
from collections.abc import Iterable, Iterator

from rlcore.data.generated import generated_rows
from rlcore.data.normalise import normalise
from rlcore.data.rows import Reject, Row, said
from rlcore.data.sources import read_source
from schemas.data import DataSection
from schemas.environment import EnvironmentSection
from schemas.generated import GeneratedSource


def read_rows(
    data: DataSection, seed: int, environment: EnvironmentSection | None = None
) -> tuple[list[Row], list[Reject], dict[str, int]]:
    """Return rows, rejects, and the number of raw rows per source; ``environment`` makes those of
    the kind of its name.

    Raises ``UserError`` as ``read_source`` and ``normalise`` do.
    """
    rows: list[Row] = []
    rejects: list[Reject] = []
    totals: Counter[str] = Counter()
    for good, bad in _normalised(data, seed, environment):
        good = list(good)
        rows += good
        rejects += bad
        totals.update(row.source for row in (*good, *bad))
    return rows, rejects, dict(totals)


def training_texts(
    data: DataSection, seed: int, environment: EnvironmentSection | None = None
) -> Iterator[str]:
    """Yield the text of every message of the training rows: what a tokenizer is trained on.

    Filters are not applied, so that a base model from scratch does not depend on them. What is not
    asked for is not generated. Raises ``UserError`` as ``read_rows`` does.
    """
    for rows, _ in _normalised(data, seed, environment):
        for row in rows:
            if row.split == "train":
                yield from (said([message]) for message in row.messages)


def _normalised(
    data: DataSection, seed: int, environment: EnvironmentSection | None
) -> Iterator[tuple[Iterable[Row], list[Reject]]]:
    """Yield rows and rejects of each table; each of its rows is one of the two."""
    for index, source in enumerate(data.sources):
        if isinstance(source, GeneratedSource):
            yield generated_rows(source, seed, environment), []
        else:
            yield from map(normalise, read_source(source, f"data.sources[{index}]"))
