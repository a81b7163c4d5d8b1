"""What a value of a data row is: written as text by CSV or pandas and read back, or a ground
truth as text, by one rule for Parquet, JSONL and the hub.

Text stays as it is; null and NaN are no value. A number that is an integer is written as one
(72.0 -> 72, which is what a column of integers with a gap holds), other decimals without trailing
zeros, dates and times in ISO 8601, bytes as the UTF-8 text they hold, true and false as in JSON.
Lists and objects are JSON, in which integers and floats stay apart.
"""

import ast
import json
import math
import re
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from rlcore.data.rows import BadRow

_KEYS = (
    r"role|content|from|value|name|id|weight|reasoning|reasoning_content|thinking|tool_calls"
    r"|tool_call_id|function_call"
)
# What a list of messages begins with, as JSON or Python writes it; numpy may add "array(".
_BEGINS = re.compile(
    rf"""\s*["']?(?:array\(|list\()?\s*\[?\s*\{{\s*\\?["'](?:{_KEYS})\\?["']\s*:"""
)
_SPEAKER = re.compile(r"""["'](?:role|from)\\?["']\s*:""")
_SAID = re.compile(r"""["'](?:content|value|tool_calls)\\?["']\s*:""")
# numpy writes a line break in place of a comma; within a text it writes "\n" for one.
_NUMPY_COMMA = re.compile(r"\}\s*\n\s*\{")


def value_in(text: str) -> Any:
    """Return the value that ``text`` writes out, most often a list or an object. Raises ValueError
    where it is neither JSON nor a literal of Python."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(_NUMPY_COMMA.sub("}, {", text.strip()))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise ValueError("it is neither JSON nor a literal of Python") from None
    return value_in(value) if isinstance(value, str) and is_conversation(value) else value


def is_conversation(text: str) -> bool:
    """Return whether ``text`` begins as messages do that were written as text.

    >>> is_conversation("[{'role': 'user', 'content': 'Hi'}]"), is_conversation('{"a": 1} to XML?')
    (True, False)
    """
    return bool(_BEGINS.match(text) and _SPEAKER.search(text) and _SAID.search(text))


def as_text(value: Any, column: str = "ground_truth", *, padded: bool = False) -> str | None:
    """Return ``value`` as text, None where there is none; ``column`` is named in errors.
    ``padded``: nulls in objects are keys that only other rows have (``RawTable``).

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
