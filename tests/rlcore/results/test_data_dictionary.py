"""What can be queried is described as a query sees it."""

import pytest

from rlcore.results.data_dictionary import NAMES, describe
from schemas.errors import UserError
from schemas.view_columns import column_descriptions


@pytest.mark.parametrize("name", NAMES)
def test_every_column_of_every_view_has_type_and_meaning(name: str) -> None:
    columns = describe(name)
    assert {column.name for column in columns} == set(column_descriptions(name))
    assert all(column.type and column.description for column in columns)


def test_types_are_those_of_sql() -> None:
    types = {column.name: column.type for column in describe("prompts")}
    assert types["uid"] == "VARCHAR"
    assert types["prompt_ids"] == "INTEGER[]"
    assert types["prompt"] == "STRUCT(role VARCHAR, content VARCHAR)[]"


def test_an_unknown_table_names_the_nearest() -> None:
    with pytest.raises(UserError, match="'rollout' is not a table; did you mean 'rollouts'"):
        describe("rollout")
