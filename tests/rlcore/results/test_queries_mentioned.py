"""A column that is taken for unused would be missing from the answer."""

import json

import duckdb
import pytest

from rlcore.results.queries import by_name_only

BY_NAME = (
    "select count(*) from t",
    "select avg(a) from t x join u using (k) where b in (select c from v) group by all order by d",
    "with q as (select a from t) select q.a, lower(b) as low from q positional join u order by low",
    "select a from t union all by name select b from u",
    "select c from (select b as c from t) s, lateral (select d from u where u.d = s.c)",
    "select [x for x in a] from t; ",
)
OTHERWISE = (
    *("from t", "table t", "select * exclude (a) from t", "select t.* from t", "describe t"),
    *("summarize t", "select columns('a') from t", "select a from t natural join u"),
    *("select b from t x(a, b)", "select x from t x", "select count(T) from main.t"),
    *("select a from t x where x is not null", "select unnest(t) from t", "show tables"),
    *("pivot t on a using sum(b)", "select a from (unpivot t on a, b)", "values (1)"),
    "select a from (pivot t on b using sum(c))",
)


@pytest.mark.parametrize("sql", [*BY_NAME, *OTHERWISE])
def test_only_names_count_in_these_and_not_in_those(sql: str) -> None:
    (parsed,) = duckdb.execute("select json_serialize_sql(?)", [sql]).fetchall()
    assert by_name_only(json.loads(parsed[0])) == (sql in BY_NAME)
