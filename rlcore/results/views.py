"""The SQL views over a store (DuckDB): what each name in a statement means, and what each column
holds: of tables the contracts say it (``schemas/tables.py``)."""

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import duckdb

from rlcore.results.conditions import constants
from rlcore.results.index import Index
from rlcore.results.stage_rows import newest
from rlcore.store.tables import arrow_schema, column_texts
from schemas.errors import UserError
from schemas.table_list import TABLES, VIEWS, added_since, schema_version

NAMES = (*VIEWS, *TABLES)
_PATTERN = re.compile(r"[*?[]")
_JOINED_BY = ("trajectory_id", "epoch")
_OF_RUNS = ("run_stages", "eval_results")
_ADDED_TO = ("run_stages", "restarts")  # of several rows of one thing the newest counts
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
    SELECT r.file, r.kind, r.key, r.records_key, w.file AS rewards_file,
        a.file AS advantages_file, o.file AS own_logprobs_file, e.file AS episodes_file
    FROM _store.rollouts_files r
    LEFT JOIN _store.episodes_files e ON e.kind = r.kind AND e.key = r.key
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
_FIRST_EPOCH = {"own_logprobs": " AND own_logprobs.epoch = 0"}
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
    recipes AS (
        SELECT key AS recipe_digest, TRY_CAST(metadata->>'iterations' AS INTEGER) AS planned
        FROM artifacts WHERE kind = 'recipe'),
    accuracy AS (
        SELECT key AS evaluation_key, checkpoint,
            sum(value * num_prompts) / sum(num_prompts) AS value
        FROM eval_results WHERE starts_with(metric, 'greedy/acc') AND subset = 'test'
        GROUP BY ALL)
    SELECT flow_run_id, run, recipe, recipe_digest, seed, overrides, made.began, seconds, state,
        stage, nullif(least(iterations, planned), 0) AS iterations,
        coalesce(planned, iterations) AS planned,
        max(value) FILTER (checkpoint = 'base') AS accuracy_base,
        max(value) FILTER (checkpoint = 'sft') AS accuracy_sft,
        max(value) FILTER (checkpoint = 'rl') AS accuracy_rl,
        records_key, dataset_key, policy_key, evaluation_key, export_key
    FROM made LEFT JOIN progress USING (records_key) LEFT JOIN accuracy USING (evaluation_key)
    LEFT JOIN recipes USING (recipe_digest)
    GROUP BY ALL
"""
# In front of the columns of every table, in SQL.
HOLDER: dict[str, str] = {
    "kind": "kind of the artifact that holds the row",
    "key": "key of that artifact within its kind",
    "records_key": "first part of key, by which stages name all that they record: the key of"
    " run_stages and of runs that says which runs the row belongs to",
}
JOINED = ("rollouts", "episodes", "rewards", "advantages", "own_logprobs")  # as trajectories
# What views hold that are no tables; of ``runs``, beside the columns that are as in run_stages.
_NAMED = {
    "kind": "what it is: base_model, dataset, policy, rollouts, rewards, metrics, ...",
    "key": "its content key within the kind",
    "sha256": "content digest over all its files",
}
_ARTIFACT_COLUMNS = {
    **_NAMED,
    "recipe_digest": "sha256 of the recipe of the run that wrote it",
    "code_fingerprint": "sha256 of what its key holds of code: versions, a user's functions",
    "producer": "id of the flow run that wrote it; empty outside of one",
    "created_at": "when it was complete, ISO 8601, UTC",
    "bytes": "size of all its files, bytes",
    "rows": "JSON object: rows by table",
    "metadata": "JSON object: what else the stage recorded",
}
_LINEAGE_COLUMNS = {
    **_NAMED,
    "role": "what the parent was used as, e.g. dataset, policy",
    "parent_kind": "kind of the parent",
    "parent_key": "key of the parent",
    "parent_sha256": "content digest that the parent had",
}
_RUN_COLUMNS = {
    "began": "when the run came to its first stage, ISO 8601, UTC",
    "seconds": "duration of its stages that have ended, s",
    "state": "completed; or unfinished: it is under way, failed, or was killed",
    "stage": "the last stage that it came to",
    "iterations": "last RL iteration with metrics; null before the first",
    "planned": "RL iterations that it was to have; where another version wrote its recipe, the last"
    " one with metrics",
    "accuracy_base": "greedy accuracy of the base model, test split; null before the evaluation",
    "accuracy_sft": "greedy accuracy after SFT, alike",
    "accuracy_rl": "greedy accuracy after RL, alike",
    "records_key": "key of what its RL recorded: records_key of rollouts, rewards, metrics, ...;"
    " runs that found the same RL in the store share it, and so does a longer run that continued"
    " there: rows of iterations up to planned are this run's",
    "dataset_key": "key of its artifact of kind dataset; null where the stage has not ended",
    "policy_key": "key of its artifact of kind policy, alike",
    "evaluation_key": "key of its artifact of kind evaluation, alike",
    "export_key": "key of its artifact of kind export, alike",
}
_OF_RUN_STAGES = ("flow_run_id", "run", "recipe", "recipe_digest", "seed", "overrides")


def column_descriptions(view: str) -> dict[str, str]:
    """Return what each column of an SQL view holds: of a table, with what says which artifact holds
    the row in front, or of a view that is no table."""
    if view == "artifacts":
        return _ARTIFACT_COLUMNS
    if view == "lineage":
        return _LINEAGE_COLUMNS
    if view == "runs":
        stages = column_texts("run_stages")
        return {name: stages[name] for name in _OF_RUN_STAGES} | _RUN_COLUMNS
    if view == "trajectories":
        found = dict(HOLDER)
        for table in JOINED:
            found = {**column_texts(table), **found}
        del found["epoch"]
        return found
    return {**holder(view), **column_texts(view)}


def holder(table: str) -> dict[str, str]:
    """Return the columns in front of a table's own; ``records_key`` of run_stages is its own."""
    own = column_texts(table)
    return {name: text for name, text in HOLDER.items() if name not in own}


@dataclass(frozen=True, slots=True)
class _Holder:
    """An artifact that holds a table, and what its manifest says of the table's file."""

    place: str
    kind: str
    key: str
    content: str
    version: str | None
    sha256: str


@dataclass(eq=False)
class Views:
    """Creates views in ``connection`` over what ``index`` has loaded."""

    connection: duckdb.DuckDBPyConnection
    index: Index
    on_damage: Callable[[str], None] | None
    paths: list[str] = field(default_factory=list)
    # Table -> the relation of its rows, with their ``file``.
    _sources: dict[str, str] = field(default_factory=dict)

    def create(self, names: Set[str]) -> None:
        """Create the views in ``names`` (lower case), and all others, empty, where a statement asks
        what views there are; files of tables that are not needed are neither verified nor read."""
        listing = bool(names & _LISTING)
        for view, sql in _MANIFEST_VIEWS.items():
            self.connection.execute(f"CREATE VIEW {view} AS {sql}")
        needed = names & set(TABLES)
        if "trajectories" in names:
            needed |= set(JOINED)
        if "runs" in names:
            needed |= set(_OF_RUNS)
        for table in sorted(needed):
            self._create_table_view(table, self._current_holders(table))
        for table in sorted(set(TABLES if listing else ()) - needed):
            self._create_table_view(table, [])
        if "trajectories" in names or listing:
            self._create_trajectories()
        if "runs" in names or listing:
            self.connection.execute(_RUNS)

    def _create_trajectories(self) -> None:
        self.connection.execute(_CHILDREN)
        shown = ["f.kind", "f.key", "f.records_key"]
        joins = ""
        for table in JOINED:
            columns = arrow_schema(table).names
            if table != "rollouts":
                columns = [column for column in columns if column not in _JOINED_BY]
                joins += (
                    f" LEFT JOIN {self._sources[table]} {table} ON {table}.file = f.{table}_file"
                    f" AND {table}.trajectory_id = rollouts.trajectory_id"
                    f"{_FIRST_EPOCH.get(table, '')}"
                )
            shown += [f"{table}.{column}" for column in columns]
        self.connection.execute(
            f"CREATE VIEW trajectories AS SELECT {', '.join(shown)}"
            f" FROM {self._sources['rollouts']} rollouts"
            f" JOIN _store.trajectory_files f ON f.file = rollouts.file{joins}"
        )

    def _current_holders(self, table: str) -> list[_Holder]:
        """Return the holders of ``table`` whose columns mean what those that we write do."""
        current = schema_version(table)
        rows = self.connection.execute(
            "SELECT m.place, m.kind, m.key, m.sha256, t.version, t.sha256"
            " FROM _store.manifests m, unnest(m.tables) AS u(t) WHERE t.name = ?"
            " ORDER BY m.kind, m.key",
            [table],
        ).fetchall()
        holders = [_Holder(*row) for row in rows]
        if table in _ADDED_TO:
            counts = set(newest(each.key for each in holders))
            holders = [each for each in holders if each.key in counts]
        read = {each.version: added_since(table, each.version or "") for each in holders}
        if others := [each for each in holders if read[each.version] is None]:
            problem = (
                f"table {table} of {len(others)} artifacts is left out: {others[0].place} has"
                f" schema {others[0].version} and {current} is read; query them with the version"
                " of this program that wrote them"
            )
            if self.on_damage is None:
                raise UserError(problem)
            self.on_damage(problem)
        return [each for each in holders if read[each.version] is not None]

    def _create_table_view(self, table: str, holders: Sequence[_Holder]) -> None:
        """Create the view, and ``_store.<table>_files``: a row per file, by number, and whose it
        is."""
        paths = [
            _plain(self.index.checked_file(h.place, h.content, f"{table}.parquet", h.sha256))
            for h in holders
        ]
        self.paths += paths
        self.connection.execute(
            f"CREATE TABLE _store.{table}_files AS"
            " SELECT unnest(range(len($files::VARCHAR[])))::INTEGER AS file,"
            " unnest($kinds::VARCHAR[]) AS kind, unnest($keys::VARCHAR[]) AS key,"
            " split_part(unnest($keys::VARCHAR[]), '/', 1) AS records_key,"
            " unnest($files::VARCHAR[]) AS filename",
            {
                "kinds": [h.kind for h in holders],
                "keys": [h.key for h in holders],
                "files": paths,
            },
        )
        self._sources[table] = self._rows(table, holders, paths)
        front = ", ".join(f"f.{name}" for name in holder(table))
        self.connection.execute(
            f"CREATE VIEW {table} AS SELECT {front}, t.* EXCLUDE (file)"
            f" FROM {self._sources[table]} t JOIN _store.{table}_files f USING (file)"
        )

    def _rows(self, table: str, holders: Sequence[_Holder], paths: Sequence[str]) -> str:
        """Return the relation of a table's rows, with the number of the ``file`` of each. A column
        that a later version added is null in files of an earlier one."""
        none = self.connection.from_arrow(arrow_schema(table).empty_table())
        none.create(f"_store.{table}_none")
        parts = [f"SELECT NULL::INTEGER AS file, * FROM _store.{table}_none"]
        versions: dict[str | None, list[str]] = {}
        for each, path in zip(holders, paths, strict=True):
            versions.setdefault(each.version, []).append(path)
        parts += [
            f"SELECT f.file, t.* EXCLUDE (filename)"
            f" FROM read_parquet([{constants(alike)}], filename = true,"
            f" hive_partitioning = false) t"
            f" JOIN _store.{table}_files f USING (filename)"
            for alike in versions.values()
        ]
        return f"({' UNION ALL BY NAME '.join(parts)})"


def _plain(path: str) -> str:
    if _PATTERN.search(path):
        raise UserError(f"{path} cannot be queried: DuckDB treats '*', '?' and '[' as patterns")
    return path
