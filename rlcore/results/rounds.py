"""Tables of one round of an RL iteration, as far as they belong together."""

import polars as pl

from rlcore.store.reader import ArtifactReader
from rlcore.store.tables import arrow_schema


def table_of_round(
    store: ArtifactReader, kind: str, name: str, iteration: int, round_: int
) -> list[pl.DataFrame]:
    """Return the table ``kind`` of the key ``name``, with the iteration and round that it is of in
    front, or nothing where it is of other rollouts than those recorded. Raises ArtifactError."""
    ref = store.find(kind, name)
    if ref is None:
        return []
    for parent in store.manifest(ref).parents.values():
        if parent.kind == "rollouts":
            recorded = store.find(parent.kind, parent.key)
            if recorded is None or recorded.sha256 != parent.sha256:
                return []
    return [_placed(store.table(ref, kind), kind, iteration, round_)]


def no_rows(kind: str) -> pl.DataFrame:
    """Return a table ``kind`` as ``table_of_round`` does, without rows."""
    return _placed(pl.DataFrame(arrow_schema(kind).empty_table()), kind, 0, 0)


def _placed(frame: pl.DataFrame, kind: str, iteration: int, round_: int) -> pl.DataFrame:
    """Return a table of records with the iteration and round that it is of, in front."""
    place = [pl.lit(iteration, dtype=pl.Int32).alias("iteration")]
    if kind != "advantages":
        place.append(pl.lit(round_, dtype=pl.Int32).alias("round"))
    rest = [name for name in frame.columns if name not in ("iteration", "round")]
    return frame.select(*place, *rest)
