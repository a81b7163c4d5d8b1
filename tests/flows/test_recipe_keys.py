"""Every key of a recipe is explained, with the default that holds at its place."""

from collections.abc import Iterator
from typing import Any, get_args

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from flows.recipe_keys import keys
from schemas.recipe import Recipe


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections inside an annotation such as ``tuple[Annotated[A | B], ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in _sections(part)]


def _leaves(
    section: type[BaseModel], path: str = "", default: BaseModel | None = None
) -> Iterator[tuple[str, str, Any, str | None]]:
    """Yield dotted path, kind of the section, default and description of all below ``section``.

    ``default`` is the section's own, which overrides those of its class.
    """
    tag = section.model_fields.get("kind")
    is_member = tag is not None and len(get_args(tag.annotation)) == 1
    kind = tag.default if tag and is_member else ""
    for key, field in section.model_fields.items():
        value = getattr(default, key) if default else field.get_default(call_default_factory=True)
        if key == "kind" and is_member:
            value = PydanticUndefined
        at = f"{path}.{key}" if path else key
        inner = _sections(field.annotation)
        for below in inner:
            of_this = value if isinstance(value, below) else None
            outer = str(field.annotation).partition("[")[0]
            item = {"tuple": ".0", "dict": ".NAME"}.get(outer, "")
            yield from _leaves(below, f"{at}{item}", of_this)
        if not inner:
            yield at, kind, value, field.description


# Two kinds of source have a section of one path in common.
LEAVES = list({leaf[:2]: leaf for leaf in _leaves(Recipe)}.values())


def test_every_key_has_its_default() -> None:
    """The defaults are those at the key's place: SFT's learning rate is not RL's."""
    known = {(key.path, key.kind): key.default for key in keys() if "section" not in key.type}
    assert len(known) == len(LEAVES) > 200
    for path, kind, default, _ in LEAVES:
        cell = known[path, kind]
        if default is PydanticUndefined:
            assert cell == "required", path
        else:
            value = list(default) if isinstance(default, tuple) else default
            assert yaml.safe_load(cell.strip("`")) == value, path


def test_every_key_says_what_it_means() -> None:
    silent = [path for path, _, _, description in LEAVES if not description]
    silent += [key.path for key in keys() if not key.meaning]
    assert not silent, f"describe them, with unit and source, in schemas/: {silent}"
