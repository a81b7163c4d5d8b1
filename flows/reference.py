"""The generated pages of docs/reference: of recipes for readers (recipe.md) and editors
(docs/recipe.schema.json), and of tables (tables.md); commands and findings: ``reference_pages``.

Those of recipes come from one tree of JSON schema nodes, a node per key of a recipe, with what
pydantic's own schema lacks: the default at that key's place, and the checks of validators.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from flows.paths import ROOT
from rlcore.recipes.errors import NAMED
from rlcore.results.queries import describe
from rlcore.rewards.registry import BUILTIN
from schemas.algorithm import ADVANTAGES, KL, POLICY_LOSSES
from schemas.environment import ENVIRONMENTS
from schemas.names import ENVIRONMENT, JUDGE, REWARD_MODEL
from schemas.presets import PRESETS
from schemas.recipe import Recipe
from schemas.rl import RLSection
from schemas.table_list import TABLES as TEXTS
from schemas.table_list import VIEWS

REFERENCE = ROOT / "docs" / "reference" / "recipe.md"
SCHEMA = ROOT / "docs" / "recipe.schema.json"
TABLES = ROOT / "docs" / "reference" / "tables.md"

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

HEAD = """# Recipe reference

Written by `make docs` from `schemas/`: change the descriptions there. Editors that know the comment
`# yaml-language-server: $schema=...` check a recipe against `docs/recipe.schema.json`.

- A **recipe** is a YAML file: `flows/recipes/NAME.yaml`, or any path. A file whose name begins with
  `_` is not a recipe, only a base for others. `model`, `data` and `reward` must be given.
- `extends: other` starts from `other.yaml` of the same folder; with `extends: [one, two]`, values
  of `two` override those of `one`, and values of the file itself override both. Sections are merged
  key by key; values and lists are replaced whole. Two keys are not simply merged: an
  `rl.algorithm.kl` with another `where` replaces the inherited one, and a `warmup_ratio`, also as
  an override, removes the `warmup_steps` set before.
- `rl.preset` names an algorithm and sets what the recipe leaves out of `rl`: see
  [Presets](#presets). Defaults are those of `preset: {preset}`; *by preset*: others change it.
- `rl.algorithm.kl` with `where: reward` starts from `estimator: {estimator}` and `coef: {coef}`.
- Overrides (`-o rl.iterations=5`) take the dotted paths below; a number indexes a list:
  `data.sources.0.limit`.
- Numbers may be written `2e-6`; text that looks like a number, such as a commit `1234e56`, needs
  quotes. Numbers are finite. A key that appears twice in one section is an error.
- An unknown key is an error, which names the nearest key and the valid ones there. All errors of
  a recipe's text are reported at once. Rules between keys, then files and functions, are checked
  before anything starts, also by `rl-pipeline run NAME --dry-run`.

## Presets

What `rl.preset` sets, where presets differ; empty: the preset has no such section.
"""
TABLES_HEAD = """# Tables

Written by `make docs` from `schemas/tables.py`: change the descriptions there. These are the views
of `rl-pipeline sql`, over all complete artifacts of a store; `rl-pipeline tables NAME` prints one.

Rows of all runs are in one view. `records_key` says which: it is that of a stage in `run_stages`,
and that of RL in `runs`. Reward by run:

    select run, seed, avg(score) from trajectories t join runs r
    on t.records_key = r.records_key and t.iteration <= r.planned group by all

A run that took its RL from the store shares the key, and the rows, with the run that made it. So
does a longer run with the shorter one that it continued: `planned` says how many of the iterations
are a run's own. Where there are no such runs, `join runs using (records_key)` will do.

Records of one run share a key, which is in the path of their files. In plain DuckDB:
```sql
select parse_path(r.filename)[-3] as records, iteration, uid, response, score
from 'runs/store/rollouts/*/*/rollouts.parquet' r join 'runs/store/rewards/*/*/rewards.parquet' w
on parse_path(r.filename)[-3] = parse_path(w.filename)[-3] and r.trajectory_id = w.trajectory_id
```
"""
TYPES = {"string": "text", "boolean": "true or false", "object": "mapping"}
SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True, slots=True)
class Key:
    """What the reference says of one key, in Markdown. ``kind``: that of its section, or empty;
    ``presets``: its values by preset where they differ."""

    path: str
    kind: str
    type: str
    default: str
    limits: str
    meaning: str
    presets: Mapping[str, str]


def keys() -> list[Key]:
    """Return every key of a recipe, sections included, in the order of the reference."""
    return [
        _key(path, section, name)
        for path, section in _sections(_tree())
        for name in section["properties"]
    ]


def reference() -> str:
    """Return the reference as Markdown: how recipes compose, the presets, a table per section."""
    kl = KL.model_validate({"where": "reward"})
    head = HEAD.format(preset=RLSection().preset, estimator=kl.estimator, coef=kl.coef)
    parts = [head, *_presets()]
    shown: set[str] = set()  # kinds of source share a section
    for path, node in _sections(_tree()):
        if (heading := _heading(path, node)) in shown:
            continue
        shown.add(heading)
        level = min(path.replace(".0", "").count(".") + 2, 4)
        about = re.sub(r"\bdocs/(\w+/\w+\.md)", r"[\g<0>](../\1)", node["description"])
        parts += ["", f"{'#' * level} {heading}", "", about, ""]
        parts += ["| key | type | default | limits | meaning |", "|---|---|---|---|---|"]
        for name, child in node["properties"].items():
            parts.append(_row(_key(path, node, name), child))
    return "\n".join(parts) + "\n"


def tables_reference() -> str:
    """Return the reference of tables as Markdown: what each holds, and its columns."""
    parts = [TABLES_HEAD, "| table | holds |", "|---|---|"]
    texts = {**VIEWS, **TEXTS}
    parts += [f"| [{name}](#{name}) | {text} |" for name, text in texts.items()]
    for name, text in texts.items():
        parts += ["", f"## {name}", "", f"{text[0].upper()}{text[1:]}.", ""]
        parts += ["| column | type | meaning |", "|---|---|---|"]
        parts += [f"| `{c.name}` | {c.type} | {c.description} |" for c in describe(name)]
    return "\n".join(parts) + "\n"


def json_schema() -> Node:
    """Return the JSON schema (2020-12) of a recipe file, which may leave out what it extends."""
    tree = _for_editors(_tree(), "")
    said = "recipes of the same folder that this one extends; a later one overrides the first"
    base = {"description": said, "type": ["string", "array"], "items": {"type": "string"}}
    tree["properties"] = {"extends": base, **tree["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Recipe", **tree}


def _tree() -> Node:
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
def _by_preset() -> dict[str, dict[str, str]]:
    """Return, by dotted path, the values of each preset for the keys in which presets differ."""
    defaults = {
        f"{path}.{key}": _shown(child.get("default"))
        for path, node in _sections(_tree())
        for key, child in node["properties"].items()
    }
    found: dict[str, dict[str, str]] = {}
    for name in PRESETS:
        section = RLSection.model_validate({"preset": name}).model_dump(mode="json")
        for path, value in _below(section, "rl"):
            found.setdefault(path, {})[name] = _shown(value)
    del found["rl.preset"]
    return {path: row for path, row in found.items() if set(row.values()) != {defaults[path]}}


def _below(section: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        yield f"{path}.{key}", value
        if isinstance(value, dict):
            yield from _below(value, f"{path}.{key}")


def _shown(value: Any) -> str:
    """Return a value in the form of a recipe; for a section, a note that it is one."""
    if isinstance(value, dict) and value:
        return "section"
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return f"`{text.strip().removesuffix('...').strip()}`"  # YAML's end marker


def _presets() -> Iterator[str]:
    yield from (f"| key | {' | '.join(PRESETS)} |", "|---" * (len(PRESETS) + 1) + "|")
    for path, row in _by_preset().items():
        yield f"| `{path}` | {' | '.join(row.get(name, '') for name in PRESETS)} |"


def _sections(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield dotted path and node of every section, in the order of the tree."""
    if "properties" in node:
        yield path, node
        for key, child in node["properties"].items():
            yield from _sections(child, f"{path}.{key}" if path else key)
    for kind in _kinds(node):
        yield from _sections(kind, path)
    for named in node.get("patternProperties", {}).values():
        yield from _sections(named, f"{path}.{NAMED}")
    if "items" in node:
        yield from _sections(node["items"], f"{path}.0")


def _kinds(node: Node) -> list[Node]:
    """Return the sections that a key selects from by its ``kind``."""
    members = node.get("oneOf") or node.get("anyOf") or []
    return [member for member in members if "properties" in member]


def _key(path: str, section: Node, name: str) -> Key:
    node, at = section["properties"][name], f"{path}.{name}" if path else name
    return Key(
        path=at,
        kind=section["properties"].get("kind", {}).get("const", ""),
        type=_type(node),
        default=_shown(node["default"]) if "default" in node else "required",
        limits=", ".join(_limits(node)),
        meaning=node.get("description", ""),
        presets=_by_preset().get(at, {}),
    )


def _row(key: Key, node: Node) -> str:
    default = key.default.removeprefix("section") + " *by preset*" * bool(key.presets)
    meaning = ", ".join(_links(key.path, node)) or key.meaning
    cells = (f"`{key.path}`", key.type, default, key.limits, meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').strip() for cell in cells)} |"


def _links(path: str, node: Node) -> Iterator[str]:
    """Yield a link to each section at ``path`` itself, or in its list."""
    for at, section in _sections(node, path):
        if at in (path, f"{path}.0", f"{path}.{NAMED}"):
            heading = _heading(at, section)
            anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            yield f"[{heading}](#{anchor})"


def _heading(path: str, section: Node) -> str:
    kind = section["properties"].get("kind", {}).get("const")
    return f"{path}, kind {kind}" if kind else path or "Top level"


def _type(node: Node) -> str:
    """Return the type in plain words."""
    kinds = node["type"] if isinstance(node.get("type"), list) else [str(node.get("type"))]
    if "items" in node:
        count = f"{node['maxItems']} " if "maxItems" in node else ""
        word = f"list of {count}{_type(node['items']).replace(' or ', 's or ')}s"
    elif "enum" in node or "const" in node:
        word = "choice"
    elif "properties" in node or _kinds(node):
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
        yield ", ".join(_shown(choice) for choice in choices if choice is not None)
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


def _for_editors(node: Node, path: str) -> Node:
    """Return the node without the defaults that an editor should not insert: those of whole
    sections, and those of a single preset."""
    node = dict(node)
    if path in _by_preset():
        described = node.get("description", "")
        node["description"] = f"{described} (default by rl.preset)".strip()
    if path in _by_preset() or "properties" in node or _kinds(node):
        node.pop("default", None)
    if "patternProperties" in node:
        node["patternProperties"] = {
            pattern: _for_editors(inner, f"{path}.{NAMED}")
            for pattern, inner in node["patternProperties"].items()
        }
    if "items" in node:
        node["items"] = _for_editors(node["items"], f"{path}.0")
    if "properties" in node:
        node["properties"] = {
            key: _for_editors(child, f"{path}.{key}" if path else key)
            for key, child in node["properties"].items()
        }
    return node
