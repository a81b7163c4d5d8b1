"""The errors of a recipe as sentences: dotted path, value, rule, remedy."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from schemas.errors import did_you_mean
from schemas.recipe import Recipe

NAMED = "NAME"  # in a dotted key, in place of the name of a section in a mapping, e.g. of a judge
SHOWN_CHARACTERS = 80  # of a value
OWN_RULE = "value_error"  # pydantic's type of an error that a validator of ours raised
REMEDIES = {
    **dict.fromkeys(("greater_than", "greater_than_equal"), "raise it"),
    **dict.fromkeys(("less_than", "less_than_equal"), "lower it"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "write a whole number"),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "write a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "write true or false"),
    "too_short": "add one",
    "string_pattern_mismatch": "write it in that form",
}


@cache
def recipe_keys() -> tuple[str, ...]:
    """Return the dotted keys of a recipe; 0 is any index of a list."""
    return tuple(dict.fromkeys(key for key, _ in _keys(Recipe, "")))


def _keys(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        key = f"{path}.{name}" if path else name
        yield key, model
        kind = str(field.annotation).partition("[")[0]
        listed = {"tuple": ".0", "dict": f".{NAMED}"}.get(kind, "")
        for inner in _models_in(field.annotation):
            yield from _keys(inner, f"{key}{listed}")


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the pydantic models inside an annotation such as ``tuple[Annotated[A | B], ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


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
    found = (f"{said}{_see(place)}" for each in real for place, said in _sentences(each))
    return [f"recipe '{name}': {sentence}" for sentence in dict.fromkeys(found)]


def _see(key: str) -> str:
    """Return where the reference has the section around the dotted ``key``; "" for none.

    A section that is chosen by its kind counts as part of the one around it.
    """
    if not key:
        return ""
    sections = _sections()
    while key and key not in sections:
        key = key.rpartition(".")[0]
    return f" (docs/reference/recipe.md#{key.replace('.', '').lower() or 'top-level'})"


@cache
def _sections() -> frozenset[str]:
    def is_plain(model: type[BaseModel]) -> bool:
        kind = model.model_fields.get("kind")
        return kind is None or len(get_args(kind.annotation)) != 1

    return frozenset(key.rpartition(".")[0] for key, model in _keys(Recipe, "") if is_plain(model))


def _first_named(rule: str) -> str:
    """Return the first key that a rule between sections names; "" where it names none."""
    named = re.findall(r"[a-z_]+(?:\.[a-z_]+)+", rule)
    return next((key for key in named if key in recipe_keys()), "")


def _sentences(error: Any) -> Iterator[tuple[str, str]]:
    """Yield the dotted key that is wrong, as ``recipe_keys`` has it, and what is said of it."""
    parts, place, fields, here = _located(error["loc"])
    path = ".".join(parts)
    if error["type"] == "extra_forbidden":
        meant = _meant(place, parts, fields)
        listed = ", ".join(sorted(fields))
        yield place, f"{path} is not a known key{meant}; valid keys there: {listed}"
    elif error["type"] == "missing":
        yield place, f"{path} is required; add it to the recipe"
    else:
        value = error["input"]
        shown = "" if isinstance(value, dict | BaseModel) else f" = {_short(value)}"
        if error["type"] == OWN_RULE:
            for rule in error["msg"].removeprefix("Value error, ").split("\n"):
                said = f"{path}{shown}: {_lower(rule)}" if path else rule
                yield place or _first_named(rule), said
        else:
            yield place, f"{path}{shown} is refused: {_rule(error, here)}"


def _meant(place: str, parts: Sequence[str], fields: Sequence[str]) -> str:
    """Return the key that an unknown one may mean: one beside it, else one of its name elsewhere,
    below the same section if there is such a one."""
    *_, name = parts
    named = [key for key in recipe_keys() if key.rpartition(".")[2] == name and key != place]
    named.sort(key=lambda key: key.partition(".")[0] != parts[0])
    return did_you_mean(name, fields) or (f"; did you mean '{named[0]}'?" if named else "")


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
) -> tuple[list[str], str, list[str], list[type[BaseModel]]]:
    """Return the keys of a pydantic location, all of them as ``recipe_keys`` has them, the field
    names of the section that holds the last one, and the sections that the last one itself may be.

    pydantic also names the member of a union that it tried, by its ``kind``; a recipe has no such
    key.
    """
    parts, places = list[str](), list[str]()
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
        places.append("0" if isinstance(part, int) else NAMED if is_name else part)
        if isinstance(part, int) or is_name:
            is_name = False
            continue
        sections = inner
        found = [m.model_fields[part].annotation for m in sections if part in m.model_fields]
        inner = _models_in(found[0]) if found else []
        is_name = bool(inner) and str(found[0]).startswith("dict")
    fields = [field for section in sections for field in section.model_fields]
    return parts, ".".join(places), fields, inner
