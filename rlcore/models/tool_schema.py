"""A function as the JSON schema that chat templates show of a tool."""

from collections.abc import Callable
from typing import Any


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the schema of ``function``, by its annotations and docstring (Google style).

    Raises ValueError with what is missing.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        return get_json_schema(function)
    except Exception as error:  # noqa: BLE001 - of many kinds; each says what is missing
        raise ValueError(" ".join(str(error).split())) from None
