"""SQL over the store: what the model said, what it earned, and what an export was made from."""

import json
from pathlib import Path

import polars as pl
import pytest

from rlcore.results.queries import describe, query
from rlcore.results.views import NAMES, column_descriptions
from rlcore.store.artifacts import ArtifactError, ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError


def rollouts(count: int) -> pl.DataFrame:
    tokens = [[1, 2, 3]] * count
    return pl.DataFrame(
        {
            "trajectory_id": [f"t{i}" for i in range(count)],
            "uid": ["u"] * count,
            "sample": pl.Series(range(count), dtype=pl.Int32),
            "iteration": pl.Series([0] * count, dtype=pl.Int32),
            "token_ids": pl.Series(tokens, dtype=pl.List(pl.Int32)),
            "prompt_tokens": pl.Series([1] * count, dtype=pl.Int32),
            "loss_mask": pl.Series([[False, True, True]] * count),
            "sampler_logprobs": pl.Series([[-0.5] * 3] * count, dtype=pl.List(pl.Float32)),
            "response": [f"answer {i}" for i in range(count)],
            "finish_reason": ["stop"] * count,
            "stop_reason": ["done"] * count,
            "turn_ends": pl.Series([[3]] * count, dtype=pl.List(pl.Int32)),
            "turn_rewards": [[0.0]] * count,
            "turn_versions": [[0]] * count,
            "valid_actions": [[True]] * count,
            "seed": list(range(count)),
            "weight_version": [0] * count,
            "weight_digest": ["w"] * count,
        }
    )


def rewards(count: int, score: float) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "trajectory_id": [f"t{i}" for i in range(count)],
            "outcome": ["ok"] * count,
            "score": [score] * count,
            "correct": [True] * count,
            "counts": [True] * count,
            "parts": ["{}"] * count,
            "detail": [""] * count,
            "failures": ["{}"] * count,
            "seconds": [0.1] * count,
            "verdicts": pl.Series([None] * count, dtype=pl.String),
        }
    )


def advantages(count: int) -> pl.DataFrame:
    values = pl.Series([[0.5] * 3] * count, dtype=pl.List(pl.Float32))
    return pl.DataFrame(
        {
            "trajectory_id": [f"t{i}" for i in range(count)],
            "advantages": values,
            "old_logprobs": values,
            "ref_logprobs": pl.Series([None] * count, dtype=pl.List(pl.Float32)),
            "values": pl.Series([None] * count, dtype=pl.List(pl.Float32)),
            "returns": pl.Series([None] * count, dtype=pl.List(pl.Float32)),
            "positive": pl.Series([None] * count, dtype=pl.Boolean),
            "penalty": pl.Series([None] * count, dtype=pl.Float64),
        }
    )


def metrics(stage: str) -> pl.DataFrame:
    return pl.DataFrame({"stage": [stage], "step": [0], "name": ["loss"], "value": [1.0]})


def run(store: ArtifactStore, name: str, score: float) -> dict[str, ArtifactRef]:
    """Store one iteration as the RL phases do: equal keys, parents by role."""

    def made_from(**parents: ArtifactRef) -> Lineage:
        return Lineage(f"recipe-{name}", "commit-1", parents, f"flow-{name}", {"iteration": 0})

    dataset = store.put(
        "dataset", name, tables={"metrics": metrics("prepare_data")}, lineage=made_from()
    )
    key = f"{name}/000000"
    rolled = store.put(
        "rollouts", key, tables={"rollouts": rollouts(3)}, lineage=made_from(dataset=dataset)
    )
    scored = store.put(
        "rewards", key, tables={"rewards": rewards(3, score)}, lineage=made_from(rollouts=rolled)
    )
    judged = store.put(
        "advantages",
        key,
        tables={"advantages": advantages(2)},
        lineage=made_from(rollouts=rolled, rewards=scored),
    )
    updated = store.put(
        "update", key, tables={"metrics": metrics("rl")}, lineage=made_from(advantages=judged)
    )
    return {"dataset": dataset, "rollouts": rolled, "rewards": scored, "update": updated}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "o'brien's store")


def test_a_trajectory_is_one_row_though_runs_name_theirs_alike(store: ArtifactStore) -> None:
    """A join by trajectory_id alone would give each run the other's rewards too."""
    run(store, "a", 1.0)
    run(store, "b", 0.25)
    rows = query(
        store,
        "SELECT key, trajectory_id, response, score, advantages FROM trajectories ORDER BY ALL",
    )
    assert rows["key"].to_list() == ["a/000000"] * 3 + ["b/000000"] * 3
    assert rows["score"].to_list() == [1.0] * 3 + [0.25] * 3
    assert rows["response"].to_list() == ["answer 0", "answer 1", "answer 2"] * 2
    assert rows["advantages"].is_null().to_list() == [False, False, True] * 2


def test_rollouts_without_rewards_are_still_rows(store: ArtifactStore) -> None:
    """A run that died in its reward phase is looked into through its rollouts."""
    store.put("rollouts", "k", tables={"rollouts": rollouts(2)}, lineage=Lineage("r", "c"))
    assert query(store, "SELECT score FROM trajectories")["score"].to_list() == [None, None]


def test_rows_of_an_older_schema_are_left_out_and_named(store: ArtifactStore) -> None:
    """Their columns have the same names and mean something else: in one view they would mislead."""
    run(store, "a", 1.0)
    old = store.put("rollouts", "old", tables={"rollouts": rollouts(2)}, lineage=Lineage("r", "c"))
    manifest = Path(old.uri) / "manifest.json"
    manifest.write_text(manifest.read_text().replace("rollouts/v2", "rollouts/v1"))
    problems: list[str] = []
    assert query(store, "SELECT count(*) AS n FROM rollouts", problems.append)["n"].item() == 3
    (said,) = problems
    assert said.startswith("table rollouts of 1 artifacts is left out: rollouts/old has schema")
    with pytest.raises(UserError, match="rollouts/v1 and rollouts/v2 is read"):
        query(store, "SELECT count(*) FROM rollouts")
    assert query(store, "SELECT count(*) AS n FROM metrics")["n"].item() == 2


def test_the_newest_rewards_of_a_rollout_count(store: ArtifactStore) -> None:
    refs = run(store, "a", 1.0)
    again = Lineage("other recipe", "c", {"rollouts": refs["rollouts"]})
    ref = store.put("rewards", "z", tables={"rewards": rewards(3, 0.5)}, lineage=again)
    manifest = Path(ref.uri) / "manifest.json"
    fields = json.loads(manifest.read_text()) | {"created_at": "2999-01-01T00:00:00+00:00"}
    manifest.write_text(json.dumps(fields))
    rows = query(store, "SELECT count(*) AS n, avg(score) AS score FROM trajectories")
    assert rows.row(0) == (3, 0.5)


def test_tables_of_all_stages_are_one_view(store: ArtifactStore) -> None:
    run(store, "a", 1.0)
    rows = query(store, "SELECT kind, key, stage FROM metrics ORDER BY stage")
    assert rows.rows() == [("dataset", "a", "prepare_data"), ("update", "a/000000", "rl")]


def test_views_of_tables_nobody_wrote_are_empty(store: ArtifactStore) -> None:
    for view in ("trajectories", "completions", "eval_results", "artifacts", "lineage", "METRICS"):
        assert query(store, f"SELECT * FROM {view}").height == 0
    assert "num_samples" in query(store, "SELECT * FROM eval_results").columns


def test_one_damaged_manifest_leaves_the_rest_to_be_asked(store: ArtifactStore) -> None:
    refs = run(store, "a", 1.0)
    manifest = Path(refs["rewards"].uri) / "manifest.json"
    manifest.write_text(manifest.read_text()[:-20])
    lines: list[str] = []
    kinds = query(store, "select distinct kind from artifacts", lines.append)["kind"].to_list()
    assert "rollouts" in kinds
    assert "rewards" not in kinds
    (line,) = lines
    assert line.startswith(f"{refs['rewards'].uri} is left out: ")
    assert "is not JSON" in line
    assert "rerun" not in line, "a rerun that finds its stage whole makes no rewards again"
    with pytest.raises(ArtifactError, match="is not JSON"):
        query(store, "select * from artifacts")


def test_artifacts_without_a_manifest_are_not_seen(store: ArtifactStore) -> None:
    refs = run(store, "a", 1.0)
    (Path(refs["rewards"].uri) / "manifest.json").unlink()
    assert query(store, "FROM rewards").height == 0
    kinds = query(store, "SELECT kind FROM artifacts ORDER BY 1")["kind"].to_list()
    assert kinds == ["advantages", "dataset", "rollouts", "update"]


def test_artifacts_tell_sizes_rows_and_metadata(store: ArtifactStore) -> None:
    run(store, "a", 1.0)
    rows = query(
        store,
        "SELECT CAST(rows->>'rollouts' AS INT) AS n, metadata->>'iteration' AS i, bytes, producer "
        "FROM artifacts WHERE kind = 'rollouts'",
    )
    n, iteration, size, producer = rows.row(0)
    assert (n, iteration, producer) == (3, "0", "flow-a")
    assert size > 1000


JOINS = {
    "rollouts JOIN rewards USING (kind)": 0,
    "rollouts JOIN rewards USING (trajectory_id)": 3,
    "rollouts LEFT JOIN rewards USING (key, trajectory_id)": 3,
    "rollouts RIGHT JOIN advantages USING (trajectory_id)": 2,
    "rollouts FULL JOIN advantages USING (trajectory_id)": 3,
    "rollouts NATURAL JOIN rewards": 0,  # their kinds differ
    "(SELECT * EXCLUDE kind FROM rollouts) NATURAL JOIN rewards": 3,
    "rollouts r JOIN rewards w ON r.trajectory_id = w.trajectory_id": 3,
    "rollouts r, rewards w WHERE r.trajectory_id = w.trajectory_id": 3,
    "rollouts CROSS JOIN metrics": 6,
    "rollouts SEMI JOIN advantages USING (trajectory_id)": 2,
    "rollouts ANTI JOIN advantages USING (trajectory_id)": 1,
    "rollouts POSITIONAL JOIN rewards": 3,
    "rollouts r ASOF JOIN rewards w ON r.key = w.key AND r.trajectory_id >= w.trajectory_id": 3,
    "rollouts r, LATERAL (SELECT * FROM rewards w WHERE w.trajectory_id = r.trajectory_id)": 3,
    "trajectories JOIN artifacts USING (key, kind)": 3,
    'main."ROLLOUTS" a JOIN Rollouts b USING (kind, key, trajectory_id)': 3,
    "rollouts LEFT JOIN prompts USING (uid)": 3,
}


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    """A store that is only read."""
    store = ArtifactStore(tmp_path_factory.mktemp("one_run"))
    run(store, "a", 1.0)
    return store


@pytest.mark.parametrize("join", JOINS)
def test_every_form_of_join_works(join: str, one_run: ArtifactStore) -> None:
    assert query(one_run, f"SELECT * FROM {join}").height == JOINS[join]


PIVOTS = {
    "PIVOT rewards ON outcome USING avg(score)": ["ok"],
    "PIVOT rewards ON outcome USING avg(score) GROUP BY key;": ["key", "ok"],
    "pivot rewards on outcome using count(*) as n group by key order by key -- all;": [
        *("key", "ok_n")
    ],
    "FROM (PIVOT rewards ON outcome USING count(*) GROUP BY key) WHERE ok > 1": ["key", "ok"],
    "WITH p AS (PIVOT metrics ON stage USING count(*) GROUP BY name) SELECT * FROM p": [
        *("name", "prepare_data", "rl")
    ],
    "SELECT key, ok FROM rewards PIVOT (avg(score) FOR outcome IN ('ok') GROUP BY key)": [
        *("key", "ok")
    ],
    "UNPIVOT (SELECT key, score, seconds FROM rewards) ON score, seconds": [
        *("key", "name", "value")
    ],
    "PIVOT (FROM rollouts JOIN rewards USING (trajectory_id)) ON outcome USING count(*)"
    " GROUP BY response": ["response", "ok"],
    "PIVOT (SELECT 'é;' AS one, outcome FROM rewards) ON outcome USING count(*);": ["one", "ok"],
}


@pytest.mark.parametrize("sql", PIVOTS)
def test_every_form_of_pivot_works(sql: str, one_run: ArtifactStore) -> None:
    found = query(one_run, sql)
    assert set(PIVOTS[sql]) <= set(found.columns)
    assert found.height


def test_a_pivot_over_nothing_is_an_empty_answer(store: ArtifactStore) -> None:
    assert query(store, "PIVOT rewards ON outcome USING avg(score) GROUP BY key").height == 0


def test_files_of_tables_that_are_not_named_are_not_read(store: ArtifactStore) -> None:
    """A query over years of rewards must not wait for the digests of all rollouts."""
    refs = run(store, "a", 1.0)
    (Path(refs["rollouts"].uri) / "rollouts.parquet").write_bytes(b"damaged")
    joined = "SELECT 'rollouts' AS \"name of rollouts\" FROM rewards JOIN advantages"
    assert query(store, f"{joined} USING (trajectory_id) -- not rollouts").height == 2
    assert query(store, "PIVOT rewards ON outcome USING count(*)").height
    with pytest.raises(ArtifactError, match=r"rollouts\.parquet"):
        query(store, "FROM rewards JOIN rollouts USING (trajectory_id)")


def test_no_statement_writes_into_the_store(store: ArtifactStore) -> None:
    """DuckDB takes what holds a PIVOT for several statements, and our files are within its
    reach."""
    refs = run(store, "a", 1.0)
    path = Path(refs["rewards"].uri) / "rewards.parquet"
    before = path.read_bytes()
    quoted = str(path).replace("'", "''")
    pivot = "PIVOT rewards ON outcome USING count(*)"
    for sql in (
        f"COPY ({pivot}) TO '{quoted}'",
        f"COPY ({pivot}) TO '{quoted}' (FORMAT parquet);",
        f"CREATE TABLE kept AS {pivot}",
        f"CREATE VIEW kept AS {pivot}",
        f"EXPLAIN ANALYZE {pivot}",
        f"INSERT INTO artifacts {pivot}",
        f"{pivot}; COPY rewards TO '{quoted}'",
        f"{pivot}) TO '{quoted}'; COPY (SELECT 1",
        f"COPY rewards TO '{quoted}'",
    ):
        with pytest.raises(UserError):
            query(store, sql)
        assert path.read_bytes() == before, sql


BAD_SQL = {
    "SELEC 1": "the query failed: Parser Error: syntax error at or near .*; views: artifacts",
    "SELECT * FROM rollout": "Table with name rollout does not exist!; views: .*rollouts",
    "SELECT scores FROM rewards": 'Referenced column "scores" not found.*Candidate bindings: .*sco',
    "SELECT 1; SELECT 2": "one SELECT is expected, found SELECT, SELECT",
    "DROP VIEW rewards": "one SELECT is expected, found DROP",
    "": "one SELECT is expected, found nothing",
    "COPY (SELECT 1) TO 'x.csv'": "one SELECT is expected, found COPY",
    "SELECT * FROM read_text('/etc/hostname')": "Permission Error: Cannot access file",
    "SELECT * FROM rewards JOIN read_text('/etc/hostname') ON true": "Permission Error: Cannot",
    "PIVOT (FROM read_text('/etc/hostname')) ON size USING count(*)": "Permission Error: Cannot",
    "PIVOT rewards ON outcom USING count(*)": 'Referenced column "outcom" not found',
    "COPY (PIVOT rewards ON outcome) TO 'x.csv'": "one SELECT is expected, found MULTI",
    "FROM rewards JOIN rollouts USING (uid)": 'Column "uid" does not exist',
}


@pytest.mark.parametrize("sql", BAD_SQL)
def test_bad_sql_is_told_in_a_sentence(sql: str, one_run: ArtifactStore) -> None:
    with pytest.raises(UserError, match=BAD_SQL[sql]) as caught:
        query(one_run, sql)
    assert "\n" not in str(caught.value)


def test_a_damaged_table_is_named_not_half_read(store: ArtifactStore) -> None:
    refs = run(store, "a", 1.0)
    path = Path(refs["rewards"].uri) / "rewards.parquet"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ArtifactError, match=r"rewards\.parquet was changed after it was written"):
        query(store, "FROM rewards")
    assert query(store, "FROM rollouts").height == 3


def test_a_remote_store_is_queried_alike(tmp_path: Path) -> None:
    store = ArtifactStore("memory://queries", cache=tmp_path)
    run(store, "a", 1.0)
    assert query(store, "SELECT sum(score) AS s FROM trajectories")["s"].to_list() == [3.0]


@pytest.mark.parametrize("name", NAMES)
def test_every_column_of_every_view_has_type_and_meaning(name: str) -> None:
    columns = describe(name)
    assert {column for column, _, _ in columns} == set(column_descriptions(name))
    assert all(of and meaning for _, of, meaning in columns)


def test_types_are_those_of_sql() -> None:
    types = {column: of for column, of, _ in describe("prompts")}
    assert types["uid"] == "VARCHAR"
    assert types["prompt_ids"] == "INTEGER[]"
    assert types["prompt"] == "STRUCT(role VARCHAR, content VARCHAR)[]"


def test_an_unknown_table_names_the_nearest() -> None:
    with pytest.raises(UserError, match="'rollout' is not a table; did you mean 'rollouts'"):
        describe("rollout")
