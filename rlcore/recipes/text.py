"""YAML of recipes and overrides: each key once, ``2e-6`` a number, quoted text as it is; and
within limits, as anchors, brackets and length can ask for more than a machine has."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from schemas.errors import UserError

TEXT = "tag:yaml.org,2002:str"
FLOAT = "tag:yaml.org,2002:float"
MERGE = "tag:yaml.org,2002:merge"
NEXT_LINE = "\x85"  # a line break of YAML 1.1, which PyYAML writes as it is and reads as a space
LONGEST = 1 << 20  # characters
DEEPEST = 64  # levels
MOST = 100_000  # values, with those of anchors counted wherever they are repeated


class BoundedLoader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, but no deeper than ``DEEPEST`` and of no more than ``MOST``
    values, and without an anchor that holds itself."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._depth = 0
        self._values: dict[int, int] = {}  # of each node that is complete, by its id

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth += 1
        if self._depth > DEEPEST:
            raise yaml.YAMLError(f"it is nested deeper than {DEEPEST} levels")
        repeated = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:  # of an empty document
            return node
        if repeated:
            if id(node) not in self._values:
                raise yaml.YAMLError("an anchor holds itself")
            return node
        if isinstance(node, yaml.ScalarNode):
            inner = []
        elif isinstance(node, yaml.MappingNode):
            inner = [each for pair in node.value for each in pair]
        else:
            inner = node.value
        self._values[id(node)] = 1 + sum(self._values[id(each)] for each in inner)
        if self._values[id(node)] > MOST:
            raise yaml.YAMLError(f"with its anchors unfolded it has more than {MOST:,} values")
        return node


class _Loader(BoundedLoader):
    """Such YAML with the floats of YAML 1.2 and without repeated keys."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise yaml.YAMLError(
                    f"the key '{key.value}' is on line {lines[key.value]} and again on line"
                    f" {line}, and only one of them could hold"
                )
            lines[key.value] = line
        return node


# YAML 1.1 demands a point and a sign, so that PyYAML takes 2e-6 for text.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != FLOAT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    FLOAT,
    re.compile(
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?$"
        r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
    list("-+.0123456789"),
)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that ``_Loader`` would take for something else."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if NEXT_LINE in text else None  # which alone hold it as an escape
    return dumper.represent_scalar(TEXT, text, style=style)


_Dumper.add_representer(str, _text)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key below ``path`` and the value of whatever in ``tree`` has no keys below
    it; items of a list of mappings count from 0."""
    if isinstance(tree, Mapping) and tree:
        items: Iterable[tuple[Any, Any]] = tree.items()
    elif isinstance(tree, list) and any(isinstance(item, Mapping) for item in tree):
        items = enumerate(tree)
    else:
        yield path, tree
        return
    for key, child in items:
        yield from leaves(child, f"{path}.{key}" if path else str(key))


def write_yaml(tree: Any, *, width: int = 80) -> str:
    """Return ``tree``, of JSON values, as YAML of lines of about ``width`` characters that
    ``read_yaml`` reads as ``tree``."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)


def read_yaml(text: str, where: str, remedy: str = "correct it") -> Any:
    """Return what the YAML ``text`` holds; ``where`` names it in errors.

    Raises UserError for text that is not YAML, with ``remedy``, for a repeated key, for a
    character U+0085, which would be read as a space, and beyond the limits of size.
    """
    if len(text) > LONGEST:
        raise UserError(f"{where} has {len(text):,} characters, and YAML here at most {LONGEST:,}")
    if NEXT_LINE in text:
        line = text[: text.index(NEXT_LINE)].count("\n") + 1
        raise UserError(
            f"{where} holds the character U+0085 on line {line}, which YAML reads as a line break;"
            ' write "\\x85" in double quotes, or remove it'
        )
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that there is not
        detail = " ".join(str(error).split())
        raise UserError(f"{where} is not valid YAML: {detail}; {remedy}") from None


def value_text(value: Any) -> str:
    """Return a value of a recipe as text: JSON, but a string as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
