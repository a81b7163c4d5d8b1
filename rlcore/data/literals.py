"""Values that CSV or pandas wrote as text, in JSON's or Python's notation, read back."""

import ast
import json
import re
from typing import Any

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
