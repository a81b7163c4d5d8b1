"""Where each value of a recipe comes from: its file, one that it extends, a preset, an override."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

from rlcore.recipes.load import load_recipe, read_tree, set_key
from schemas.presets import PRESETS
from schemas.section import Section

OVERRIDE = "override"
BY_RULE = "by other keys"  # a validator filled it in, or a preset left it out
NO_VALUE: Any = object()  # of a key that must be given, or that a place does not set
SHOWN_CHARACTERS = 36  # of a value in a table


@dataclass(frozen=True, slots=True)
class OriginValue:
    """A value that ``place`` gives to a key: the path of a file, "preset NAME" or "override"."""

    place: str
    value: Any


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a recipe, and the default at its place; ``place`` None: nothing sets it."""

    path: str
    value: Any
    default: Any
    place: str | None


class Origins:
    """The resolved ``recipe`` and what sets its keys. Arguments and errors: ``load_recipe``."""

    def __init__(
        self, name: str, overrides: Mapping[str, Any] | None = None, *, directory: Path
    ) -> None:
        self.recipe = load_recipe(name, overrides, directory=directory)
        preset = f"preset {self.recipe.rl.preset}"
        # In order of precedence, the last wins.
        self._layers: list[tuple[str, Any]] = [(preset, {"rl": PRESETS[self.recipe.rl.preset]})]

        def own(path: Path, tree: dict[str, Any]) -> dict[str, Any]:
            self._layers.append((str(path), tree))
            return tree

        read_tree(name, directory, own=own)
        for path, value in (overrides or {}).items():
            tree: dict[str, Any] = {}
            set_key(tree, path, value)
            self._layers.append((OVERRIDE, tree))

    def settings(self, path: str) -> list[OriginValue]:
        """Return every place that sets the key or section ``path``, in order of precedence."""
        found = ((place, _at(tree, path)) for place, tree in self._layers)
        return [OriginValue(place, value) for place, value in found if value is not NO_VALUE]

    def values(self) -> Iterator[Value]:
        """Yield every value of the recipe, in the order of its sections.

        A section that is null by default and is given counts as a value, {}.
        """
        for path, value, default in _values(self.recipe, NO_VALUE, ""):
            yield Value(path, value, default, self._place(path, value))

    def _place(self, path: str, value: Any) -> str | None:
        """Return which place gave ``path`` its ``value``, the last one that sets it so: a place may
        set what another one's section displaces."""
        settings = self.settings(path)
        said = [
            setting.place
            for setting in settings
            if isinstance(setting.value, Mapping) or _plain(setting.value) == _plain(value)
        ]
        # None is equal where pydantic read a value as another type, as "7" as a number.
        said = said or [each.place for each in settings if isinstance(each.value, str)]
        return said[-1] if said else None

    def lines(self) -> list[str]:
        """Return a table of the values that differ from the defaults, and what set them."""
        rows = [("key", "value", "default", "set by")]
        for item in self.values():
            if item.value != item.default:
                by = item.place or BY_RULE
                by = Path(by).name if by.endswith((".yaml", ".yml")) else by
                rows.append((item.path, brief(item.value), brief(item.default), by))
        first, second, third = (max(len(row[column]) for row in rows) for column in range(3))
        return [f"{a:{first}}  {b:{second}}  {c:{third}}  {d}" for a, b, c, d in rows]


def brief(value: Any) -> str:
    """Return a value as one line of YAML, cut to ``SHOWN_CHARACTERS``; "-" for none."""
    if value is NO_VALUE or isinstance(value, Section):
        return "-" if value is NO_VALUE else "section"
    plain = list(value) if isinstance(value, tuple) else value
    if isinstance(plain, Mapping):  # judges are sections by name
        plain = {
            name: one.model_dump(mode="json") if isinstance(one, Section) else one
            for name, one in plain.items()
        }
    text = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True, width=10_000)
    text = text.strip().removesuffix("...").strip()  # YAML's end marker
    if "\n" in text:
        text = json.dumps(plain, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."


def _plain(value: Any) -> Any:
    """Return a value with lists in place of tuples, at any depth."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _at(tree: Any, path: str) -> Any:
    """Return what ``tree`` holds at the dotted ``path``, ``NO_VALUE`` where it holds nothing."""
    for part in path.split("."):
        if isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        elif isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return NO_VALUE
    return tree


def _values(section: Section, default: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield dotted path, value and default of all below ``section``.

    ``default`` is the section's own where it has one, which overrides those of its class.
    """
    for key, info in type(section).model_fields.items():
        value, at = getattr(section, key), f"{path}.{key}" if path else key
        usual = NO_VALUE if info.is_required() else info.get_default(call_default_factory=True)
        if isinstance(default, type(section)):
            usual = getattr(default, key)
        elif key == "kind" and len(get_args(info.annotation)) == 1:
            usual = NO_VALUE  # it says which section this is
        if isinstance(value, Section):
            if usual is None:
                yield at, {}, None
            yield from _values(value, usual, at)
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            for index, item in enumerate(value):
                yield from _values(item, NO_VALUE, f"{at}.{index}")
        else:
            yield at, value, usual
