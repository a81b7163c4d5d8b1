"""SQL over everything a store holds (DuckDB).

Views, complete artifacts only:

``artifacts``     one row per artifact: kind, key, sha256, recipe_digest, code_fingerprint,
                  producer, created_at, bytes, and as JSON text rows (per table) and metadata
``lineage``       one row per parent of an artifact: kind, key, sha256, role, parent_kind,
                  parent_key, parent_sha256
``trajectories``  one row per trajectory: its rollout, reward and advantage, and the own_logprobs of
                  the first epoch that trained on it
``runs``          one row per flow run: recipe, seed, progress, accuracy, keys of what it made
and each table of ``schemas.tables`` by its name (``metrics``, ``eval_results``, ...) over all
artifacts, with the ``kind`` and ``key`` of the artifact in front, and the ``records_key`` by which
``runs`` and ``run_stages`` name it.
"""

from collections.abc import Callable

import polars as pl

from rlcore.results.statement import selected
from rlcore.store.reader import ArtifactReader


def query(
    store: ArtifactReader, sql: str, on_damage: Callable[[str], None] | None = None
) -> pl.DataFrame:
    """Return the rows of one SELECT over the store's views; it can neither write nor read other
    files.

    An artifact whose manifest is damaged is left out and reported to ``on_damage``, and so is a
    table in an older schema, whose columns mean something else; without ``on_damage`` these raise
    DamagedArtifact and UserError. Raises DamagedArtifact for damage of a file that is read,
    UserError for SQL that does not parse, bind or select, ArtifactError where the store cannot be
    read.
    """
    with selected(store, sql, on_damage) as relation:
        return relation.pl()
