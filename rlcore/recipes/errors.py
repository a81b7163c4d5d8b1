"""The errors of a recipe as sentences: dotted path, value, rule, remedy, and which key was meant
by one that does not exist."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from rlcore.recipes.foreign_keys import ABSENT, KEYS, SECTIONS
from schemas.errors import did_you_mean
from schemas.recipe import Recipe

NEAR = 0.75  # similarity at which a name beside the wrong one is taken for it before others are
CLOSE = 0.8  # similarity at which a name of elsewhere is
SHORT = 4  # characters of a name below which others are like it by accident
NAMED = "NAME"  # in a dotted key, in place of the name of a section in a mapping, e.g. of a judge
# Where several keys have one name and nothing around it decides.
ORDER = ("rl", "data", "model", "sft", "evaluate", "reward", "hardware", "reward_model")


@dataclass(frozen=True, slots=True)
class Hint:
    """``text``: what to write instead, behind a semicolon, or "". ``key``: the dotted key that it
    names. ``sure``: the name was known, so that a list of the keys there would add nothing.
    """

    text: str = ""
    key: str | None = None
    sure: bool = False


def hint(path: Sequence[str], beside: Sequence[str]) -> Hint:
    """Return the hint for the unknown key at ``path``, whose section has the keys ``beside``.

    Names of other libraries come first, then names that the recipe has elsewhere, then similar
    names. Of several keys of one name the sections in ``path`` choose.

    >>> hint(["rl", "num_generations"], ["iterations"]).key
    'rl.rollout.samples'
    """
    indexed = _placed(path)
    words = [part.lower().replace("-", "_").lstrip("_") for part in indexed]
    if kinds := _kinds_with(indexed):
        return Hint(f"; it is a key of kind {' or '.join(kinds)}")
    for length in range(len(words), 0, -1):
        ending = ".".join(words[-length:])
        if ending in KEYS:
            return _named(_likeliest(KEYS[ending], words))
        if ending in ABSENT:
            return Hint(f"; {ABSENT[ending]}", sure=True)
    *_, name = words
    near = get_close_matches(name, beside, n=1, cutoff=NEAR)
    if own := recipe_keys().get(name):
        likeliest = _likeliest(own, words)
        if not near or _fit(likeliest, words):
            return _named(likeliest)
    if not near and len(name) >= SHORT:
        known = [*recipe_keys(), *KEYS, *ABSENT]
        (close,) = get_close_matches(name, known, n=1, cutoff=CLOSE) or [None]
        if close in ABSENT:
            return Hint(f"; {ABSENT[close]}", sure=True)
        if close is not None:
            keys = KEYS.get(close) or recipe_keys()[close]
            return _named(_likeliest(keys, words), sure=False)
    text = did_you_mean(name, beside)
    return Hint(text, ".".join((*path[:-1], text.split("'")[1])) if text else None)


def unknown_leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, ...]]:
    """Yield the paths to report for the unknown key ``path``: its own, or where it is a section
    that corresponds to none of ours, those of the values in it."""
    key = hint(path, ()).key
    several = isinstance(value, Mapping) and len(value) > 1
    if several and key is not None and set(map(str, value)) <= _below(key):
        yield path
    else:
        yield from _leaves(path, value)


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, ...]]:
    if not isinstance(value, Mapping) or not value:
        yield path
        return
    for name, inner in value.items():
        yield from _leaves((*path, str(name)), inner)


@cache
def recipe_keys() -> dict[str, tuple[str, ...]]:
    """Return the dotted keys of a recipe by their last part; 0 is any index of a list."""
    found: dict[str, list[str]] = {}
    for key, _, _ in _recipe_fields():
        name = key.rpartition(".")[2]
        found.setdefault(name, []).append(key)

    def place(key: str) -> int:
        top = key.partition(".")[0]
        return ORDER.index(top) if top in ORDER else len(ORDER)

    return {name: tuple(sorted(dict.fromkeys(keys), key=place)) for name, keys in found.items()}


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the pydantic models inside an annotation such as ``tuple[Annotated[A | B], ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


@cache
def _recipe_fields() -> tuple[tuple[str, Any, type[BaseModel]], ...]:
    return tuple(_fields(Recipe, ""))


def _fields(model: type[BaseModel], path: str) -> Iterator[tuple[str, Any, type[BaseModel]]]:
    """Yield dotted key, annotation and section of every field of ``model``, which is ``path``."""
    for name, field in model.model_fields.items():
        key = f"{path}.{name}" if path else name
        yield key, field.annotation, model
        kind = str(field.annotation).partition("[")[0]
        listed = {"tuple": ".0", "dict": f".{NAMED}"}.get(kind, "")
        for inner in models_in(field.annotation):
            yield from _fields(inner, f"{key}{listed}")


def _placed(path: Sequence[str]) -> list[str]:
    """Return the parts of ``path``, with 0 for an index and ``NAMED`` for a name of the user's."""
    parts = ["0" if part.isdigit() else part for part in path]
    for place in range(1, len(parts)):
        below = f"{'.'.join(parts[:place])}.{NAMED}."
        if any(key.startswith(below) for key, _, _ in _recipe_fields()):
            parts[place] = NAMED
    return parts


def _kinds_with(path: Sequence[str]) -> list[str]:
    """Return the kinds of section, quoted, that have the key ``path``, its indices all 0."""
    at = ".".join(path)
    owners = [model for key, _, model in _recipe_fields() if key == at]
    return [repr(model.model_fields["kind"].default) for model in owners if _has_kind(model)]


def _has_kind(model: type[BaseModel]) -> bool:
    return "kind" in model.model_fields


def _below(key: str) -> set[str]:
    """Return the names of the fields of the section ``key``; none where it is no section."""
    start = f"{key}."
    inside = [path for path, _, _ in _recipe_fields() if path.startswith(start)]
    return {path.removeprefix(start).partition(".")[0] for path in inside}


def _likeliest(keys: Sequence[str], words: Sequence[str]) -> str:
    """Return the key whose sections are those of ``words``; of equals the first."""
    return max(keys, key=lambda key: _fit(key, words))


def _fit(key: str, words: Sequence[str]) -> int:
    """Return how many sections of ``key`` are those around the last of ``words``; the innermost
    count most."""
    weights = {SECTIONS.get(word, word): 2**place for place, word in enumerate(words[:-1])}
    return sum(weights.get(section, 0) for section in set(key.split(".")[:-1]))


def _named(key: str, *, sure: bool = True) -> Hint:
    return Hint(f"; did you mean '{key}'?", key, sure)


SHOWN_CHARACTERS = 80  # of a value
OWN_RULE = "value_error"  # pydantic's type of an error that a validator of ours raised
REMEDIES = {
    **dict.fromkeys(("greater_than", "greater_than_equal"), "raise it"),
    **dict.fromkeys(("less_than", "less_than_equal"), "lower it"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "write a whole number"),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "write a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "write true or false"),
    "too_short": "add one",
}


def sentences(name: str, error: ValidationError) -> list[str]:
    """Return every error of the recipe ``name`` as one sentence, each once."""
    errors = error.errors(include_url=False, include_context=False)
    places = [each["loc"] for each in errors]
    # An item that is refused is missing from its list, which pydantic then calls too short.
    real = [
        each
        for each in errors
        if each["type"] != "too_short"
        or not any(
            len(p) > len(each["loc"]) and p[: len(each["loc"])] == each["loc"] for p in places
        )
    ]
    found = (f"{said}{_see(key)}" for each in real for key, said in _sentences(each))
    return [f"recipe '{name}': {sentence}" for sentence in dict.fromkeys(found)]


def _see(key: Sequence[str]) -> str:
    """Return where the reference has the section around ``key``, none for no key.

    A section that is chosen by its kind counts as part of the one around it.
    """
    if not key:
        return ""
    sections = {path.rpartition(".")[0] for path, _, model in _recipe_fields() if _plain(model)}
    parts = _placed(key)
    while parts and ".".join(parts) not in sections:
        parts.pop()
    return f" (docs/reference/recipe.md#{''.join(parts).lower() or 'top-level'})"


def _named_first(rule: str) -> list[str]:
    """Return the first key that a rule between sections names; none where it names none."""
    known = {key for key, _, _ in _recipe_fields()}
    named = (found for found in re.findall(r"[a-z_]+(?:\.[a-z_]+)+", rule) if found in known)
    first = next(named, None)
    return first.split(".") if first else []


def _plain(model: type[BaseModel]) -> bool:
    return not _has_kind(model) or len(get_args(model.model_fields["kind"].annotation)) != 1


def _sentences(error: Any) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the key that is wrong, or meant, and what is said of it."""
    parts, fields, here = _located(error["loc"])
    path = ".".join(parts)
    if error["type"] == "extra_forbidden":
        for leaf in unknown_leaves(tuple(parts), error["input"]):
            meant = hint(leaf, fields if len(leaf) == len(parts) else ())
            listed = "" if meant.sure else f"; valid keys there: {', '.join(sorted(fields))}"
            place = meant.key.split(".") if meant.key else leaf
            yield place, f"{'.'.join(leaf)} is not a known key{meant.text}{listed}"
    elif error["type"] == "missing":
        yield parts, f"{path} is required; add it to the recipe"
    else:
        value = error["input"]
        shown = "" if isinstance(value, dict | BaseModel) else f" = {_short(value)}"
        if error["type"] == OWN_RULE:
            for rule in error["msg"].removeprefix("Value error, ").split("\n"):
                yield (
                    parts or _named_first(rule),
                    f"{path}{shown}: {_lower(rule)}" if path else rule,
                )
        else:
            yield parts, f"{path}{shown} is refused: {_rule(error, here)}"


def _rule(error: Any, here: Sequence[type[BaseModel]]) -> str:
    """Return rule and remedy of an error that pydantic found; ``here``: the sections possible."""
    kind, value, rule = error["type"], error["input"], _lower(error["msg"])
    match kind:
        case "model_type" | "model_attributes_type" if here:
            keys = ", ".join(field for model in here for field in model.model_fields)
            return f"it is a section; write keys below it: {keys}"
        case "union_tag_not_found":
            kinds = ", ".join(repr(model.model_fields["kind"].default) for model in here)
            return f"it needs a kind; add one of {kinds}"
        case "tuple_type":
            return f"it is a list; write [{_short(value)}]"
        case "string_type" if not isinstance(value, dict | list):
            return f"{rule}; write it in quotes" if value is not None else rule
        case "literal_error" if isinstance(value, bool):
            return f"{rule}; YAML reads a bare on, off, yes or no as true or false: quote it"
    return f"{rule}; {REMEDIES[kind]}" if kind in REMEDIES else rule


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."


def _lower(text: str) -> str:
    """Return ``text`` without a capital at its start, unless that begins a name such as DAPO."""
    return text if text[1:2].isupper() else f"{text[:1].lower()}{text[1:]}"


def _located(
    location: Sequence[str | int],
) -> tuple[list[str], list[str], list[type[BaseModel]]]:
    """Return the keys of a pydantic location, the field names of the section that holds the last
    one, and the sections that the last one itself may be.

    pydantic also names the member of a union that it tried, by its ``kind``; a recipe has no such
    key.
    """
    parts: list[str] = []
    sections: list[type[BaseModel]] = [Recipe]
    inner = sections
    is_name = False  # the next part is one that the user chose, e.g. of a judge
    for part in location:
        kinds = {m.model_fields["kind"].default: m for m in inner if "kind" in m.model_fields}
        if len(inner) > 1 and part in kinds:
            inner = [kinds[part]]
            continue
        if part == "[key]":  # pydantic's mark of a name that is refused, which comes before it
            continue
        parts.append(str(part))
        if isinstance(part, int) or is_name:
            is_name = False
            continue
        sections = inner
        found = [m.model_fields[part].annotation for m in sections if part in m.model_fields]
        inner = models_in(found[0]) if found else []
        is_name = bool(inner) and str(found[0]).startswith("dict")
    return parts, [field for section in sections for field in section.model_fields], inner
