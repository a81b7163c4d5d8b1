"""Which key of a recipe was meant by one that does not exist."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from rlcore.foreign_keys import ABSENT, KEYS, SECTIONS
from schemas.errors import did_you_mean
from schemas.recipe import Recipe

NEAR = 0.75  # similarity at which a name beside the wrong one is taken for it before others are
CLOSE = 0.8  # similarity at which a name of elsewhere is
SHORT = 4  # characters of a name below which others are like it by accident
NAMED = "NAME"  # stands in a dotted key for the name of a section in a mapping, e.g. of a judge
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
    that stands for none of ours, those of the values in it."""
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
    """Return the dotted keys of a recipe by their last part; 0 stands for an index of a list."""
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
