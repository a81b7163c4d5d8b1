"""The keys of a recipe: what each means, its type, limits and default.

They come from one tree of JSON schema nodes, a node per key, with what pydantic's own schema lacks:
the default at that key's place, and the checks of validators.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from rlcore.recipes.errors import NAMED
from rlcore.rewards.registry import BUILTIN
from schemas.algorithm import ADVANTAGES, POLICY_LOSSES
from schemas.environment import ENVIRONMENTS
from schemas.names import ENVIRONMENT, JUDGE, REWARD_MODEL
from schemas.presets import PRESETS
from schemas.recipe import Recipe
from schemas.rl import RLSection

Node = dict[str, Any]


def _named(names: list[str]) -> Node:
    """Return the schema of a key that holds one of ``names`` or a user's function."""
    return {"anyOf": [{"enum": names}, {"pattern": r"^[^:]+:[^\W\d]\w*$"}]}


# Checks of validators on a single key, by its dotted path.
CHECKED: dict[str, Node] = {
    "rl.preset": {"enum": list(PRESETS)},
    "rl.algorithm.advantage": _named(list(ADVANTAGES)),
    "rl.algorithm.policy_loss": _named(list(POLICY_LOSSES)),
    "rl.rollout.top_p": {"enum": [1]},
    "rl.rollout.top_k": {"enum": [-1]},
    "rl.max_logprob_gap": {"maximum": 10},
    "reward.functions.0.name": _named([*BUILTIN, REWARD_MODEL, ENVIRONMENT, JUDGE]),
    "environment.name": _named(list(ENVIRONMENTS)),
    "evaluate.pass_k.0": {"minimum": 1},
    "data.sources.0.steps.0": {"minimum": 1, "maximum": 3},
}
TYPES = {"string": "text", "boolean": "true or false", "object": "mapping"}
SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True, slots=True)
class Key:
    """What is said of one key, in Markdown. ``kind``: that of its section, or empty;
    ``presets``: its values by preset where they differ."""

    path: str
    kind: str
    type: str
    default: str
    limits: str
    meaning: str
    presets: Mapping[str, str]


def keys() -> list[Key]:
    """Return every key of a recipe, sections included, in the order of the tree."""
    return [
        key_of(path, section, name)
        for path, section in sections(recipe_tree())
        for name in section["properties"]
    ]


def recipe_tree() -> Node:
    """Return the node of the whole recipe."""
    raw = Recipe.model_json_schema()
    return _node(raw, raw.pop("$defs"), "")


def _node(raw: Node, defs: Mapping[str, Node], path: str) -> Node:
    """Return the node at the dotted ``path``, without references, and all below it.

    A node without ``default`` is required. Below a list, which a file must give as a whole, the
    schema requires it in the file too.
    """
    if "anyOf" in raw and {"type": "null"} not in raw["anyOf"]:  # values of several types
        kinds = [_node(option, defs, path)["type"] for option in raw["anyOf"]]
        return {**{key: value for key, value in raw.items() if key != "anyOf"}, "type": kinds}
    if "anyOf" in raw:  # a value or null
        (inner,) = [option for option in raw["anyOf"] if option != {"type": "null"}]
        rest = {key: value for key, value in raw.items() if key != "anyOf"}
        node = _node({**inner, **rest}, defs, path)
        node["type"] = [node["type"], "null"]
        return node | {"enum": [*node["enum"], None]} if "enum" in node else node
    if "$ref" in raw:
        section = defs[raw["$ref"].rpartition("/")[2]]
        texts = [part["description"] for part in (section, raw) if "description" in part]
        raw = {**section, **raw, "description": " ".join(texts)}
    dropped = {"$ref", "title", "discriminator", "required", "oneOf", "prefixItems"}
    node = {key: value for key, value in raw.items() if key not in dropped}
    if "description" in node:
        node["description"] = " ".join(node["description"].replace("``", "`").split())
    listed = "0" in path.split(".")
    if "oneOf" in raw:
        # Without the kind, which a file may inherit, several kinds can fit.
        members = [_node(option, defs, path) for option in raw["oneOf"]]
        node["oneOf" if listed else "anyOf"] = members
    if "properties" in raw:
        node["properties"] = nodes = _properties(raw, defs, path)
        if listed:
            node["required"] = [key for key in nodes if "default" not in nodes[key]]
    if "patternProperties" in raw:  # sections under names of the user's
        node["patternProperties"] = {
            pattern: _node(inner, defs, f"{path}.{NAMED}")
            for pattern, inner in raw["patternProperties"].items()
        }
    items = raw.get("items") or next(iter(raw.get("prefixItems", ())), None)
    if items:  # the items of a tuple have the same type
        node["items"] = _node(items, defs, f"{path}.0")
    return node | CHECKED.get(path, {})


def _properties(raw: Node, defs: Mapping[str, Node], path: str) -> dict[str, Node]:
    """Return the nodes of a section's keys; a default of the section overrides theirs."""
    section, nodes = raw.get("default"), {}
    for key, field in raw["properties"].items():
        field = dict(field)
        if "const" in field:  # the kind: pydantic requires it although it has a default
            field.pop("default")
        elif isinstance(section, dict):
            field["default"] = section[key]
        elif key not in raw.get("required", []):
            field.setdefault("default", {})  # default from a factory, which pydantic's schema omits
        nodes[key] = _node(field, defs, f"{path}.{key}" if path else key)
    return nodes


@cache
def by_preset() -> dict[str, dict[str, str]]:
    """Return, by dotted path, the values of each preset for the keys in which presets differ."""
    defaults = {
        f"{path}.{key}": shown(child.get("default"))
        for path, node in sections(recipe_tree())
        for key, child in node["properties"].items()
    }
    found: dict[str, dict[str, str]] = {}
    for name in PRESETS:
        section = RLSection.model_validate({"preset": name}).model_dump(mode="json")
        for path, value in _below(section, "rl"):
            found.setdefault(path, {})[name] = shown(value)
    del found["rl.preset"]
    return {path: row for path, row in found.items() if set(row.values()) != {defaults[path]}}


def _below(section: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        yield f"{path}.{key}", value
        if isinstance(value, dict):
            yield from _below(value, f"{path}.{key}")


def shown(value: Any) -> str:
    """Return a value in the form of a recipe; for a section, a note that it is one."""
    if isinstance(value, dict) and value:
        return "section"
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return f"`{text.strip().removesuffix('...').strip()}`"  # YAML's end marker


def sections(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield dotted path and node of every section, in the order of the tree."""
    if "properties" in node:
        yield path, node
        for key, child in node["properties"].items():
            yield from sections(child, f"{path}.{key}" if path else key)
    for kind in kinds_of(node):
        yield from sections(kind, path)
    for named in node.get("patternProperties", {}).values():
        yield from sections(named, f"{path}.{NAMED}")
    if "items" in node:
        yield from sections(node["items"], f"{path}.0")


def kinds_of(node: Node) -> list[Node]:
    """Return the sections that a key selects from by its ``kind``."""
    members = node.get("oneOf") or node.get("anyOf") or []
    return [member for member in members if "properties" in member]


def key_of(path: str, section: Node, name: str) -> Key:
    """Return the key ``name`` of the ``section`` at ``path``."""
    node, at = section["properties"][name], f"{path}.{name}" if path else name
    return Key(
        path=at,
        kind=section["properties"].get("kind", {}).get("const", ""),
        type=_type(node),
        default=shown(node["default"]) if "default" in node else "required",
        limits=", ".join(_limits(node)),
        meaning=node.get("description", ""),
        presets=by_preset().get(at, {}),
    )


def _type(node: Node) -> str:
    """Return the type in plain words."""
    kinds = node["type"] if isinstance(node.get("type"), list) else [str(node.get("type"))]
    if "items" in node:
        count = f"{node['maxItems']} " if "maxItems" in node else ""
        word = f"list of {count}{_type(node['items']).replace(' or ', 's or ')}s"
    elif "enum" in node or "const" in node:
        word = "choice"
    elif "properties" in node or kinds_of(node):
        word = "section"
    elif "patternProperties" in node:
        word = "mapping of sections"
    else:
        word = " or ".join(TYPES.get(kind, kind) for kind in kinds if kind != "null")
    return f"{word} or null" if "null" in kinds else word


def _limits(node: Node) -> Iterator[str]:
    """Yield the choices of a value, or its bounds."""
    choices = node.get("enum") or ([node["const"]] if "const" in node else [])
    if choices:
        yield ", ".join(shown(choice) for choice in choices if choice is not None)
        return
    yield from (f"{sign} {node[key]:g}" for key, sign in SIGNS.items() if key in node)
    for option in [node, *node.get("anyOf", [])]:
        if "pattern" in option:
            yield f"`{option['pattern']}`" if option is node else "or `package.module:function`"
        elif "enum" in option:
            yield from _limits(option)
    if node.get("minItems") == 1:
        yield "not empty"
    if "items" in node:
        yield from (f"each {limit}" for limit in _limits(node["items"]))
