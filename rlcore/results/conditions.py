"""SQL conditions as row filters (DuckDB), and constants of SQL."""

from collections.abc import Iterable

import duckdb
import polars as pl

from schemas.errors import UserError

# No extension is downloaded.
ALONE: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


def constant(text: str) -> str:
    """Return a text as a constant of SQL."""
    return "'" + text.replace("'", "''") + "'"


def constants(texts: Iterable[str]) -> str:
    """Return texts as constants of SQL, comma-separated."""
    return ", ".join(map(constant, texts))


def filter_rows(frame: pl.DataFrame, sql_condition: str, where: str = "filter") -> pl.DataFrame:
    """Return the rows of ``frame`` for which ``sql_condition`` (a WHERE clause) holds, in order.

    A condition that is null for a row drops it, as in SQL. ``where`` names the condition in errors.
    Raises UserError listing the columns when the condition is not valid over them.
    """
    numbered = frame.with_row_index("__row")
    with duckdb.connect(config={**ALONE, "enable_external_access": False}) as connection:
        connection.register("frame_rows", numbered.to_arrow())
        try:
            # A relation's filter is parsed as a single expression, so no statement can be injected.
            kept = connection.table("frame_rows").filter(sql_condition).select("__row").pl()
        except duckdb.Error as error:
            raise UserError(
                f"{where} = {sql_condition!r} is no SQL condition over the rows: "
                f"{reason_of(error)}; columns: {', '.join(frame.columns)}"
            ) from None
    return frame[kept["__row"].sort()]


def reason_of(error: Exception) -> str:
    """Return DuckDB's message on one line, without its excerpt of the SQL and its suggestions."""
    said = str(error).partition("\n\nLINE")[0].splitlines()
    return " ".join(line for line in said if not line.startswith("Did you mean"))
