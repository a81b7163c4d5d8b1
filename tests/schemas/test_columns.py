"""A column without a text is a number that nobody can read."""

import pytest

from schemas import columns
from schemas.columns import COLUMNS
from schemas.tables import TABLES


@pytest.mark.parametrize("name", TABLES)
def test_every_column_of_every_table_says_what_it_holds(name: str) -> None:
    described = COLUMNS.get(name, {})
    assert set(described) == set(TABLES[name].to_schema().columns), "see schemas/columns.py"
    assert all(described.values())


def test_every_table_says_what_it_holds() -> None:
    assert set(columns.TABLES) == set(COLUMNS) == set(TABLES)
    assert all(columns.TABLES.values())
