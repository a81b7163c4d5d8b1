"""Values of recipe keys that a study sweeps: ``-o key=a,b``, and all combinations of several."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from rlcore.recipes import parse_override
from schemas.errors import UserError

_CLOSES = {"[": "]", "{": "}", '"': '"', "'": "'"}


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination. ``values``: the swept keys as ``key=value``, "" where nothing is swept."""

    overrides: dict[str, Any]
    values: str = ""


def variants(texts: Sequence[str]) -> list[Variant]:
    """Return every combination of the values in ``texts``, each ``key=value[,value...]``; the last
    key varies fastest.

    A comma within brackets or quotes parts nothing, so a list is one value, and lists are swept as
    ``[1],[1,2]``. Raises UserError where a key is given twice with values to sweep, or a value is
    empty or not YAML.
    """
    keys: dict[str, list[tuple[str, Any]]] = {}
    for text in texts:
        path, separator, given = text.partition("=")
        parts = list(_parts(given))
        if not separator:
            parse_override(text)  # says what is missing
        if len(parts) > 1 and not all(part.strip() for part in parts):
            raise UserError(f"-o {text}: a value between the commas is empty; leave it out")
        found = [(part.strip(), parse_override(f"{path}={part}")) for part in parts]
        name = found[0][1][0]
        if name in keys and max(len(found), len(keys[name])) > 1:
            raise UserError(f"-o {text}: {name} is given twice; write its values once: {name}=a,b")
        values = {shown: value for shown, (_, value) in found}
        if len(values) < len(found):
            raise UserError(f"-o {text}: a value is there twice; leave one out")
        keys[name] = list(values.items())
    swept = [name for name, values in keys.items() if len(values) > 1]
    return [
        Variant(
            {name: value for name, (_, value) in zip(keys, chosen, strict=True)},
            ", ".join(
                f"{name}={shown}"
                for name, (shown, _) in zip(keys, chosen, strict=True)
                if name in swept
            ),
        )
        for chosen in product(*keys.values())
    ]


def _parts(text: str) -> Iterator[str]:
    """Yield ``text`` cut at the commas outside brackets and quotes."""
    open_, start = [], 0
    for place, character in enumerate(text):
        if open_ and character == open_[-1]:
            open_.pop()
        elif open_ and open_[-1] in "\"'":
            continue
        elif character in _CLOSES:
            open_.append(_CLOSES[character])
        elif character == "," and not open_:
            yield text[start:place]
            start = place + 1
    yield text[start:]
