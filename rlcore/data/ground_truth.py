"""What a value of a data row is as text: one rule for Parquet, JSONL and the hub.

Text stays as it is; null and NaN are no value. A number that is an integer is written as one
(72.0 -> 72, which is what a column of integers with a gap holds), other decimals without trailing
zeros, dates and times in ISO 8601, bytes as the UTF-8 text they hold, true and false as in JSON.
Lists and objects are JSON, in which integers and floats stay apart.
"""

import json
import math
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from rlcore.data.rows import BadRow


def as_text(value: Any, column: str = "ground_truth", *, padded: bool = False) -> str | None:
    """Return ``value`` as text, None where there is none; ``column`` is named in errors.
    ``padded``: nulls in objects stand for keys that other rows have (``RawTable``).

    Raises BadRow for infinity, bytes that are no text, and types that have no text.
    """
    value = _plain(value, column, padded)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return str(int(value)) if value.is_integer() else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Any, column: str, padded: bool) -> Any:
    """Return ``value`` as what JSON knows."""
    if isinstance(value, list | tuple):
        return [_plain(item, column, padded) for item in value]
    if isinstance(value, dict):
        kept = {str(name): item for name, item in value.items() if item is not None or not padded}
        return {name: _plain(item, column, padded) for name, item in kept.items()}
    if isinstance(value, Decimal):
        return _decimal(value, column)
    if isinstance(value, datetime) and value.time() == time() and value.tzinfo is None:
        value = value.date()  # what a column of dates becomes in pandas
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise BadRow("wrong_type", f"{column} is bytes that are no UTF-8 text") from None
    if isinstance(value, float) and math.isinf(value):
        raise BadRow("wrong_type", f"{column} is {value}, which is no answer")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise BadRow(
        "wrong_type", f"{column} is of type {type(value).__name__}, which has no text; write text"
    )


def _decimal(value: Decimal, column: str) -> Any:
    """Return a decimal as an integer, or as the text of its digits."""
    if value.is_nan():
        return None
    if not value.is_finite():
        raise BadRow("wrong_type", f"{column} is {value}, which is no answer")
    if value == value.to_integral_value():
        return int(value)
    return format(value.normalize(), "f")
