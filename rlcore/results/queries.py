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

import json
from collections.abc import Callable, Sequence

import polars as pl

from rlcore.results.statement import selected
from rlcore.store.artifacts import ArtifactStore
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef, Manifest

_NAME = ["kind", "key", "sha256"]
_ARTIFACTS = {
    "kind": pl.String,
    "key": pl.String,
    "sha256": pl.String,
    "recipe_digest": pl.String,
    "code_fingerprint": pl.String,
    "producer": pl.String,
    "created_at": pl.String,
    "bytes": pl.Int64,
    "rows": pl.String,
    "metadata": pl.String,
}


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


def lineage(store: ArtifactStore, ref: ArtifactRef) -> pl.DataFrame:
    """Return all artifacts that ``ref`` was made from, itself first, with their rows and code.

    Columns: depth (fewest steps away), role, kind, key, sha256, present (still in the store),
    recipe_digest, code_fingerprint, producer, created_at, rows.
    """
    # Breadth first instead of a recursive query: it visits each artifact once, however many paths
    # lead to it, and a long RL run has at least one path per iteration.
    known = {(m.kind, m.key, m.sha256): m for m in store.manifests()}
    rows: dict[tuple[str, str, str], tuple[int, str]] = {_name(ref): (0, "self")}
    layer = [_name(ref)]
    while layer:
        depth = rows[layer[0]][0] + 1
        parents = [
            (_name(parent), role)
            for name in layer
            if name in known
            for role, parent in known[name].parents.items()
        ]
        layer = []
        for name, role in parents:
            if name not in rows:
                rows[name] = (depth, role)
                layer.append(name)
    made = pl.DataFrame(
        [(depth, role, *name) for name, (depth, role) in rows.items()],
        schema={"depth": pl.Int64, "role": pl.String} | dict.fromkeys(_NAME, pl.String),
        orient="row",
    )
    details = _artifacts(list(known.values())).drop("bytes", "metadata")
    return (
        made.join(details.with_columns(present=True), on=_NAME, how="left", maintain_order="left")
        .with_columns(pl.col("present").fill_null(False))
        .sort("depth", "kind", "key")
    )


def _artifacts(manifests: Sequence[Manifest]) -> pl.DataFrame:
    rows = [
        (
            m.kind,
            m.key,
            m.sha256,
            m.recipe_digest,
            m.code_fingerprint,
            m.producer,
            m.created_at,
            sum(entry.bytes for entry in m.files.values()),
            json.dumps(m.rows),
            json.dumps(m.metadata),
        )
        for m in manifests
    ]
    return pl.DataFrame(rows, schema=_ARTIFACTS, orient="row")


def _name(thing: ArtifactRef) -> tuple[str, str, str]:
    return thing.kind, thing.key, thing.sha256
