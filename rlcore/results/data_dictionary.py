"""What SQL can ask a store for: its views, their columns, types and meanings."""

import tempfile
from dataclasses import dataclass

from rlcore.results.statement import answer
from rlcore.results.views import NAMES
from rlcore.store.reader import ArtifactReader
from schemas.errors import UserError, did_you_mean
from schemas.view_columns import column_descriptions


@dataclass(frozen=True, slots=True)
class Column:
    """``type``: in SQL, e.g. ``FLOAT[]``."""

    name: str
    type: str
    description: str


def describe(view: str) -> list[Column]:
    """Return the columns of a table or view, in order, as a query sees them.

    Raises UserError, naming the nearest, for a name that is none of ``NAMES``.
    """
    if view not in NAMES:
        raise UserError(
            f"'{view}' is not a table{did_you_mean(view, NAMES)}; tables: {', '.join(NAMES)}"
        )
    with tempfile.TemporaryDirectory() as empty:
        found = answer(ArtifactReader(empty), f"DESCRIBE {view}").dicts()
    texts = column_descriptions(view)
    return [
        Column(
            each["column_name"], each["column_type"].replace('"', ""), texts[each["column_name"]]
        )
        for each in found
    ]
