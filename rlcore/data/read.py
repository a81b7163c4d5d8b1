"""All rows of a recipe's sources, before any filter."""

from collections import Counter
from collections.abc import Iterator

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
    for index, source in enumerate(data.sources):
        if isinstance(source, GeneratedSource):
            generated = list(generated_rows(source, seed, environment))
            rows += generated
            totals[generated[0].source] += len(generated)
            continue
        for table in read_source(source, f"data.sources[{index}]"):
            good, bad = normalise(table)
            rows += good
            rejects += bad
            totals[table.source] += len(table.rows)
    return rows, rejects, dict(totals)


def training_texts(
    data: DataSection, seed: int, environment: EnvironmentSection | None = None
) -> Iterator[str]:
    """Yield the text of every message of the training rows: what a tokenizer is trained on.

    Filters are not applied, so that a base model from scratch does not depend on them. What is not
    asked for is not generated. Raises ``UserError`` as ``read_rows`` does.
    """
    for index, source in enumerate(data.sources):
        if isinstance(source, GeneratedSource):
            rows = generated_rows(source, seed, environment)
        else:
            tables = read_source(source, f"data.sources[{index}]")
            rows = (row for table in tables for row in normalise(table)[0])
        for row in rows:
            if row.split == "train":
                yield from (said([message]) for message in row.messages)
