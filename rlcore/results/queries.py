"""SQL over everything a store holds (DuckDB).

Views, complete artifacts only:

``artifacts``     one row per artifact: kind, key, sha256, recipe_digest, code_fingerprint,
                  producer, created_at, bytes, and as JSON text rows (per table) and metadata
``lineage``       one row per parent of an artifact: kind, key, sha256, role, parent_kind,
                  parent_key, parent_sha256
``trajectories``  one row per trajectory: its rollout, reward and advantage, and the own_logprobs of
                  the first epoch that trained on it
and each table of ``schemas.tables`` by its name (``metrics``, ``eval_results``, ...) over all
artifacts, with the ``kind`` and ``key`` of the artifact in front.
"""

import json
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa

from rlcore.results.conditions import ALONE, reason_of
from rlcore.store.artifacts import ArtifactStore
from rlcore.store.tables import arrow_schema
from schemas.artifacts import ArtifactRef, Manifest
from schemas.columns import TABLES as TEXTS
from schemas.columns import VIEWS
from schemas.errors import UserError
from schemas.tables import TABLES, column_descriptions, schema_version

_JOINED = ("rollouts", "rewards", "advantages", "own_logprobs")
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
_LINEAGE = {
    "kind": pl.String,
    "key": pl.String,
    "sha256": pl.String,
    "role": pl.String,
    "parent_kind": pl.String,
    "parent_key": pl.String,
    "parent_sha256": pl.String,
}

# Trajectory ids are not unique across runs, so rows are joined through the lineage of their
# artifacts; of several rewards (or advantages) of one rollout artifact the newest is used.
_NEWEST_CHILD = """
    SELECT l.parent_kind, l.parent_key, l.kind, l.key
    FROM lineage l JOIN artifacts a USING (kind, key)
    WHERE json_exists(a.rows, '$.{table}')
    QUALIFY row_number() OVER (
        PARTITION BY l.parent_kind, l.parent_key ORDER BY a.created_at DESC, l.key DESC) = 1
"""
_TRAJECTORIES = f"""
    CREATE VIEW trajectories AS
    WITH reward_of AS ({_NEWEST_CHILD.format(table="rewards")}),
         advantage_of AS ({_NEWEST_CHILD.format(table="advantages")}),
         own_of AS ({_NEWEST_CHILD.format(table="own_logprobs")})
    SELECT r.*, w.* EXCLUDE (kind, key, trajectory_id), a.* EXCLUDE (kind, key, trajectory_id),
        o.own_logprobs
    FROM rollouts r
    LEFT JOIN reward_of ro ON ro.parent_kind = r.kind AND ro.parent_key = r.key
    LEFT JOIN rewards w
        ON w.kind = ro.kind AND w.key = ro.key AND w.trajectory_id = r.trajectory_id
    LEFT JOIN advantage_of ao ON ao.parent_kind = r.kind AND ao.parent_key = r.key
    LEFT JOIN advantages a
        ON a.kind = ao.kind AND a.key = ao.key AND a.trajectory_id = r.trajectory_id
    LEFT JOIN own_of oo ON oo.parent_kind = ao.kind AND oo.parent_key = ao.key
    LEFT JOIN own_logprobs o ON o.kind = oo.kind AND o.key = oo.key
        AND o.trajectory_id = r.trajectory_id AND o.epoch = 0
"""


def query(
    store: ArtifactStore, sql: str, on_damage: Callable[[str], None] | None = None
) -> pl.DataFrame:
    """Return the rows of one SELECT over the store's views; it can neither write nor read other
    files.

    An artifact whose manifest is damaged is left out and reported to ``on_damage``, and so is a
    table in an older schema, whose columns mean something else; without ``on_damage`` these raise
    DamagedArtifact and UserError. Raises DamagedArtifact for damage of a file that is read,
    UserError for SQL that does not parse, bind or select, ArtifactError where the store cannot be
    read.
    """
    with duckdb.connect(config=ALONE) as connection:
        try:
            tokens = _tokens(sql)
            _refuse_other_than_one_select(connection, sql, tokens)
            _create_views(connection, store, {token.name for token in tokens}, on_damage)
            return connection.sql(sql).pl()
        except duckdb.Error as error:
            views = ", ".join(["artifacts", "lineage", "trajectories", *TABLES])
            raise UserError(f"the query failed: {reason_of(error)}; views: {views}") from None


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


@dataclass(frozen=True, slots=True)
class _Token:
    """A word or sign of a statement; ``start``: its first byte in UTF-8."""

    start: int
    text: str

    @property
    def name(self) -> str:
        """The identifier that it stands for, as DuckDB compares them."""
        return self.text.strip('"').lower()


def _tokens(sql: str) -> list[_Token]:
    """Return the tokens of ``sql``, string constants and comments left out."""
    content, found = sql.encode(), duckdb.tokenize(sql)
    starts = [*(start for start, _ in found), len(content)]
    left_out = (duckdb.token_type.string_const, duckdb.token_type.comment)
    return [
        _Token(start, content[start:end].decode().strip())
        for (start, kind), end in zip(found, starts[1:], strict=True)
        if kind not in left_out
    ]


def _refuse_other_than_one_select(
    connection: duckdb.DuckDBPyConnection, sql: str, tokens: Sequence[_Token]
) -> None:
    kinds = [statement.type for statement in connection.extract_statements(sql)]
    if kinds == [duckdb.StatementType.SELECT]:
        return
    found = ", ".join(kind.name for kind in kinds) or "nothing"
    refused = UserError(f"one SELECT is expected, found {found}")
    if kinds != [duckdb.StatementType.MULTI]:
        raise refused
    # DuckDB splits what holds a PIVOT into several statements, be it a SELECT or a COPY that would
    # write into the store. In brackets the grammar allows a SELECT only.
    end = next((token.start for token in tokens if token.text == ";"), None)
    try:
        connection.extract_statements(f"FROM ({sql.encode()[:end].decode()}\n)")
    except duckdb.ParserException:
        raise refused from None


def _create_views(
    connection: duckdb.DuckDBPyConnection,
    store: ArtifactStore,
    names: Set[str],
    on_damage: Callable[[str], None] | None,
) -> None:
    """Create the views whose names are in ``names``, which is in lower case; files of other tables
    are neither verified nor read.

    DuckDB's own list of a statement's tables cannot be used: it binds the statement where there are
    none, which a join by column names or a PIVOT does not survive.
    """
    manifests = store.manifests(on_damage)
    _create_manifest_views(connection, manifests)
    tables = names | set(_JOINED) if "trajectories" in names else names
    paths: list[str] = []
    for table in sorted(tables & set(TABLES)):
        holders = [m for m in manifests if table in m.rows]
        current = _of_current_schema(holders, table, on_damage)
        paths += _create_table_view(connection, store, current, table)
    if "trajectories" in names:
        connection.execute(_TRAJECTORIES)
    for view in sorted({"artifacts", "lineage"} | tables & set(TABLES) | names & {"trajectories"}):
        _comment(connection, view)
    connection.execute(f"SET allowed_paths = [{_quoted(paths)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _comment(connection: duckdb.DuckDBPyConnection, view: str) -> None:
    """Say in SQL what a view and its columns hold: ``duckdb_views()``, ``duckdb_columns()``."""
    connection.execute(f"COMMENT ON VIEW {view} IS {_quoted([{**TEXTS, **VIEWS}[view]])}")
    for column, text in column_descriptions(view).items():
        connection.execute(f'COMMENT ON COLUMN {view}."{column}" IS {_quoted([text])}')


def _of_current_schema(
    holders: Sequence[Manifest], table: str, on_damage: Callable[[str], None] | None
) -> list[Manifest]:
    """Return the holders of ``table`` whose columns mean what those we write do."""
    current = schema_version(table)
    others = [m for m in holders if m.schema_versions.get(table) != current]
    if others:
        first = others[0]
        problem = (
            f"table {table} of {len(others)} artifacts is left out: {first.kind}/{first.key} has"
            f" schema {first.schema_versions.get(table)} and {current} is read; query them with the"
            " version of this program that wrote them"
        )
        if on_damage is None:
            raise UserError(problem)
        on_damage(problem)
    return [m for m in holders if m.schema_versions.get(table) == current]


def _create_manifest_views(
    connection: duckdb.DuckDBPyConnection, manifests: Sequence[Manifest]
) -> None:
    edges = [
        (m.kind, m.key, m.sha256, role, parent.kind, parent.key, parent.sha256)
        for m in manifests
        for role, parent in m.parents.items()
    ]
    connection.register("artifacts", _artifacts(manifests).to_arrow())
    connection.register("lineage", pl.DataFrame(edges, schema=_LINEAGE, orient="row").to_arrow())


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


def _create_table_view(
    connection: duckdb.DuckDBPyConnection,
    store: ArtifactStore,
    holders: Sequence[Manifest],
    table: str,
) -> list[str]:
    """Create the view of one table over ``holders``; return the paths of the files it reads."""
    if not holders:
        text = [pa.field(name, pa.string()) for name in ("kind", "key")]
        connection.register(table, pa.schema([*text, *arrow_schema(table)]).empty_table())
        return []
    paths = [str(_plain(store.file(m, f"{table}.parquet"))) for m in holders]
    files = pa.table(
        {"kind": [m.kind for m in holders], "key": [m.key for m in holders], "filename": paths}
    )
    connection.register(f"_{table}_files", files)
    connection.execute(
        f"CREATE VIEW {table} AS SELECT f.kind, f.key, t.* EXCLUDE (filename) "
        f"FROM read_parquet([{_quoted(paths)}], filename = true, union_by_name = true) t "
        f"JOIN _{table}_files f USING (filename)"
    )
    return paths


def _plain(path: Path) -> Path:
    if any(char in str(path) for char in "*?["):
        raise UserError(f"{path} cannot be queried: DuckDB treats '*', '?' and '[' as patterns")
    return path


def _quoted(paths: Sequence[str]) -> str:
    return ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
