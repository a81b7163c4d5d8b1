"""The SQL views over a store (DuckDB): what each name in a statement stands for."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import duckdb

from rlcore.results.index import Index
from schemas.columns import TABLES as TEXTS
from schemas.columns import VIEWS, column_descriptions, holder
from schemas.errors import UserError
from schemas.sql_types import SQL_TYPES
from schemas.versions import schema_version

NAMES = (*VIEWS, *TEXTS)
_JOINED = ("rollouts", "rewards", "advantages", "own_logprobs")
_NEEDS = {"trajectories": _JOINED, "runs": ("run_stages", "eval_results")}
# Words of statements and names of catalogues that list views, or columns of those not named.
_LISTING = {"show", "information_schema", "duckdb_views", "duckdb_columns", "duckdb_tables"}
_MANIFEST_VIEWS = {
    "artifacts": """
        SELECT kind, key, sha256, recipe_digest, code_fingerprint, producer, created_at, bytes,
            rows, metadata
        FROM _store.manifests""",
    "lineage": """
        SELECT m.kind, m.key, m.sha256, p.role, p.kind AS parent_kind, p.key AS parent_key,
            p.sha256 AS parent_sha256
        FROM _store.manifests m, unnest(m.parents) AS u(p)""",
}
# Trajectory ids are not unique across runs, so rows are joined through the lineage of their
# artifacts; of several rewards (or advantages) of one rollout artifact the newest is used.
_CHILDREN = """
    CREATE TABLE _store.children AS
    SELECT p.kind AS parent_kind, p.key AS parent_key, t.name AS table_name, m.kind, m.key
    FROM _store.manifests m, unnest(m.parents) AS u(p), unnest(m.tables) AS v(t)
    WHERE t.name IN ('rewards', 'advantages', 'own_logprobs')
    QUALIFY row_number() OVER (
        PARTITION BY p.kind, p.key, t.name ORDER BY m.created_at DESC, m.key DESC) = 1;
    CREATE TABLE _store.trajectory_files AS
    SELECT r.filename, r.kind, r.key, r.records_key, w.filename AS reward_file,
        a.filename AS advantage_file, o.filename AS own_file
    FROM _store.rollouts_files r
    LEFT JOIN _store.children wc ON wc.parent_kind = r.kind AND wc.parent_key = r.key
        AND wc.table_name = 'rewards'
    LEFT JOIN _store.rewards_files w ON w.kind = wc.kind AND w.key = wc.key
    LEFT JOIN _store.children ac ON ac.parent_kind = r.kind AND ac.parent_key = r.key
        AND ac.table_name = 'advantages'
    LEFT JOIN _store.advantages_files a ON a.kind = ac.kind AND a.key = ac.key
    LEFT JOIN _store.children oc ON oc.parent_kind = ac.kind AND oc.parent_key = ac.key
        AND oc.table_name = 'own_logprobs'
    LEFT JOIN _store.own_logprobs_files o ON o.kind = oc.kind AND o.key = oc.key
"""
_TRAJECTORIES = """
    CREATE VIEW trajectories AS
    SELECT f.kind, f.key, f.records_key, r.* EXCLUDE (filename),
        w.* EXCLUDE (filename, trajectory_id), a.* EXCLUDE (filename, trajectory_id),
        o.own_logprobs
    FROM {rollouts} r
    JOIN _store.trajectory_files f ON f.filename = r.filename
    LEFT JOIN {rewards} w ON w.filename = f.reward_file AND w.trajectory_id = r.trajectory_id
    LEFT JOIN {advantages} a
        ON a.filename = f.advantage_file AND a.trajectory_id = r.trajectory_id
    LEFT JOIN {own_logprobs} o
        ON o.filename = f.own_file AND o.trajectory_id = r.trajectory_id AND o.epoch = 0
"""
_RUNS = """
    CREATE VIEW runs AS
    WITH made AS (
        SELECT flow_run_id, any_value(run) AS run, any_value(recipe) AS recipe,
            any_value(recipe_digest) AS recipe_digest, any_value(seed) AS seed,
            any_value(overrides) AS overrides, min(began) AS began, sum(seconds) AS seconds,
            CASE WHEN count_if(stage = 'export' AND sha256 IS NOT NULL) > 0
                THEN 'completed' ELSE 'unfinished' END AS state,
            arg_max(stage, began) AS stage,
            any_value(records_key) FILTER (stage = 'rl') AS records_key,
            any_value(result_key) FILTER (stage = 'prepare_data' AND sha256 IS NOT NULL)
                AS dataset_key,
            any_value(result_key) FILTER (stage = 'rl' AND sha256 IS NOT NULL) AS policy_key,
            any_value(result_key) FILTER (stage = 'evaluate' AND sha256 IS NOT NULL)
                AS evaluation_key,
            any_value(result_key) FILTER (stage = 'export' AND sha256 IS NOT NULL) AS export_key
        FROM run_stages GROUP BY flow_run_id),
    progress AS (
        SELECT split_part(key, '/', 1) AS records_key,
            max(TRY_CAST(split_part(key, '/', 2) AS INTEGER)) AS iterations
        FROM artifacts WHERE kind = 'metrics' GROUP BY ALL),
    accuracy AS (
        SELECT key AS evaluation_key, checkpoint,
            sum(value * num_prompts) / sum(num_prompts) AS value
        FROM eval_results WHERE starts_with(metric, 'greedy/acc') AND subset = 'test'
        GROUP BY ALL)
    SELECT flow_run_id, run, recipe, recipe_digest, seed, overrides, made.began, seconds, state,
        stage, nullif(iterations, 0) AS iterations,
        max(value) FILTER (checkpoint = 'base') AS accuracy_base,
        max(value) FILTER (checkpoint = 'sft') AS accuracy_sft,
        max(value) FILTER (checkpoint = 'rl') AS accuracy_rl,
        records_key, dataset_key, policy_key, evaluation_key, export_key
    FROM made LEFT JOIN progress USING (records_key) LEFT JOIN accuracy USING (evaluation_key)
    GROUP BY ALL
"""


@dataclass(frozen=True, slots=True)
class _Holder:
    """An artifact that holds a table, and what its manifest says of the table's file."""

    place: str
    kind: str
    key: str
    content: str
    version: str | None
    sha256: str


class Views:
    """Creates views in ``connection`` over what ``index`` has loaded."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        index: Index,
        on_damage: Callable[[str], None] | None,
    ) -> None:
        self._connection, self._index, self._on_damage = connection, index, on_damage
        self._sources: dict[str, str] = {}  # table -> the relation of its rows, filename included
        self.paths: list[str] = []

    def create(self, names: Set[str]) -> None:
        """Create the views in ``names`` (lower case), and all others, empty, where a statement asks
        what views there are; files of tables that are not needed are neither verified nor read.
        """
        needed = {table for name in names for table in _NEEDS.get(name, ())}
        for view, sql in _MANIFEST_VIEWS.items():
            self._connection.execute(f"CREATE VIEW {view} AS {sql}")
        for table in sorted((names | needed) & set(TEXTS)):
            self._create_table_view(table, self._current_holders(table))
        if names & _LISTING:
            for table in sorted(set(TEXTS) - names - needed):
                self._create_table_view(table, [])
        shown = VIEWS if names & _LISTING else names
        if "trajectories" in shown:
            self._create_trajectories()
        if "runs" in shown:
            self._connection.execute(_RUNS)
        for (view,) in self._connection.execute(
            "SELECT view_name FROM duckdb_views() WHERE NOT internal"
        ).fetchall():
            self._comment(view)

    def _create_trajectories(self) -> None:
        for table in _JOINED:
            if table not in self._sources:  # a statement that lists views
                self._create_table_view(table, [])
        self._connection.execute(_CHILDREN)
        self._connection.execute(_TRAJECTORIES.format(**self._sources))

    def _comment(self, view: str) -> None:
        """Say in SQL what a view and its columns hold: ``duckdb_views()``, ``duckdb_columns()``."""
        said = [f"COMMENT ON VIEW {view} IS {_quoted([{**TEXTS, **VIEWS}[view]])}"]
        for column, text in column_descriptions(view).items():
            said.append(f'COMMENT ON COLUMN {view}."{column}" IS {_quoted([text])}')
        self._connection.execute("; ".join(said))

    def _current_holders(self, table: str) -> list[_Holder]:
        """Return the holders of ``table`` whose columns mean what those we write do."""
        current = schema_version(table)
        rows = self._connection.execute(
            "SELECT m.place, m.kind, m.key, m.sha256, t.version, t.sha256"
            " FROM _store.manifests m, unnest(m.tables) AS u(t) WHERE t.name = ?"
            " ORDER BY m.kind, m.key",
            [table],
        ).fetchall()
        holders = [_Holder(*row) for row in rows]
        if others := [each for each in holders if each.version != current]:
            problem = (
                f"table {table} of {len(others)} artifacts is left out: {others[0].place} has"
                f" schema {others[0].version} and {current} is read; query them with the version"
                " of this program that wrote them"
            )
            if self._on_damage is None:
                raise UserError(problem)
            self._on_damage(problem)
        return [each for each in holders if each.version == current]

    def _create_table_view(self, table: str, holders: Sequence[_Holder]) -> None:
        paths = [
            str(_plain(self._index.checked_file(h.place, h.content, f"{table}.parquet", h.sha256)))
            for h in holders
        ]
        self.paths += paths
        self._connection.execute(
            f"CREATE TABLE _store.{table}_files AS SELECT unnest($kinds::VARCHAR[]) AS kind,"
            " unnest($keys::VARCHAR[]) AS key, unnest($records::VARCHAR[]) AS records_key,"
            " unnest($files::VARCHAR[]) AS filename",
            {
                "kinds": [h.kind for h in holders],
                "keys": [h.key for h in holders],
                "records": [h.key.partition("/")[0] for h in holders],
                "files": paths,
            },
        )
        self._sources[table] = _rows_of(table, paths)
        front = ", ".join(f"f.{name}" for name in holder(table))
        self._connection.execute(
            f"CREATE VIEW {table} AS SELECT {front}, t.* EXCLUDE (filename)"
            f" FROM {self._sources[table]} t JOIN _store.{table}_files f USING (filename)"
        )


def _rows_of(table: str, paths: Sequence[str]) -> str:
    """Return the relation of a table's rows, with the ``filename`` of each."""
    if paths:
        return f"read_parquet([{_quoted(paths)}], filename = true)"
    columns = {"filename": "VARCHAR", **(SQL_TYPES.get(table) or _contract_types(table))}
    nulls = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in columns.items())
    return f"(SELECT {nulls} WHERE false)"


def _plain(path: Path) -> Path:
    if any(char in str(path) for char in "*?["):
        raise UserError(f"{path} cannot be queried: DuckDB treats '*', '?' and '[' as patterns")
    return path


def _quoted(texts: Sequence[str]) -> str:
    return ", ".join("'" + text.replace("'", "''") + "'" for text in texts)


def _contract_types(table: str) -> dict[str, str]:
    """Return the SQL types of the columns of a table that ``SQL_TYPES`` does not list, from its
    contract, whose import takes seconds."""
    from rlcore.store.tables import sql_types

    return sql_types(table)
