"""Whether a SELECT uses the columns that it names, and no others."""

from collections.abc import Iterator
from typing import Any

# Relations of a statement whose columns are used by name only.
_RELATIONS = {"BASE_TABLE", "SUBQUERY", "JOIN", "EMPTY", "EMPTY_FROM", "TABLE_FUNCTION", "CTE"}


def by_name_only(statement: Any) -> bool:
    """Return whether a column of a table counts only where its name stands in the statement, which
    is given as ``json_serialize_sql`` writes it.

    Not so with a star, a natural join, renamed columns (``FROM t(a, b)``), a whole row (``SELECT t
    FROM t``), and in statements of other forms.
    """
    if statement.get("error"):
        return False
    relations: set[str] = set()
    last_names: set[str] = set()
    for node in _nodes(statement["statements"]):
        if "class" in node:
            if node["class"] == "STAR":
                return False
            if node["class"] == "COLUMN_REF":
                last_names.add(node["column_names"][-1].lower())
        elif "sample" in node and "modifiers" not in node:  # what FROM names
            if node["type"] not in _RELATIONS or node.get("ref_type") == "NATURAL":
                return False
            if node.get("column_name_alias"):
                return False
            relations |= {node["alias"].lower(), node.get("table_name", "").lower()}
    return not relations & last_names


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        for inner in tree.values():
            yield from _nodes(inner)
    elif isinstance(tree, list):
        for inner in tree:
            yield from _nodes(inner)
