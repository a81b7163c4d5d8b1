"""A column without a text is a number that nobody can read."""

import pytest

from schemas import table_list
from schemas.tables import TABLES


@pytest.mark.parametrize("name", TABLES)
def test_every_column_of_every_table_says_what_it_holds(name: str) -> None:
    assert all(column.description for column in TABLES[name].columns.values())


def test_every_table_says_what_it_holds() -> None:
    assert set(table_list.TABLES) == set(TABLES)
    assert all(table_list.TABLES.values())
