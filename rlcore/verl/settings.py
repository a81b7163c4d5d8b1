"""The settings of one verl run, typed and interpolated, what becomes of each key
(``keys.yaml``), and the notes on their translation."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from schemas.errors import UserError, did_you_mean

ROLES = ("actor", "rollout", "ref", "model")
ACTOR, ROLLOUT, REFERENCE, MODEL = (f"actor_rollout_ref.{role}" for role in ROLES)


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a key of verl's, or a pattern of keys; ``keys.yaml`` explains the fields."""

    to: str = ""
    kind: str | list[str] = ""
    remark: str = ""
    by: str = ""
    names: Mapping[str, str] | Sequence[str] = ()
    default: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    lacks: str = ""
    differs: str = ""
    idle: Sequence[Any] = ()
    is_on: bool = False

    def asks(self, value: Any) -> bool:
        """Return whether the value asks for something that has no counterpart."""
        if not (self.lacks or self.differs) or value is None or value in self.idle:
            return False
        return self.is_on or value not in (False, 0, [], {})


_TABLE = yaml.safe_load(Path(__file__).with_name("keys.yaml").read_text(encoding="utf-8"))
MOVED: dict[str, str] = _TABLE.pop("moved")
KEYS = {
    f"{section}.{name}".lstrip("."): Fate(**fate)
    for sections, fates in _TABLE.items()
    for names, fate in fates.items()
    for section in sections.split(", ")
    for name in names.split(", ")
}
PATTERNS = sorted((key for key in KEYS if "*" in key), key=len, reverse=True)


def _found(key: str) -> Fate | None:
    patterns = (KEYS[pattern] for pattern in PATTERNS if fnmatchcase(key, pattern))
    return KEYS[key] if key in KEYS else next(patterns, None)


def entry(key: str) -> Fate:
    """Return how verl's full ``key`` is translated: its own entry, else that of the longest
    pattern. Raises UserError with the nearest known key."""
    found = _found(key)
    if found is None:
        raise UserError(
            f"'{key}' is not a known setting of verl{did_you_mean(key, KEYS)}; fix or remove it"
        )
    return found


def full_key(key: str) -> str:
    """Return verl's full key for one that was moved, or for a short form such as
    ``actor.optim.lr``, when it is the ending of only one key.

    Unknown keys come back unchanged.
    """
    for new, old in MOVED.items():
        if key == new or (new.endswith(".") and key.startswith(new)):
            return old + key.removeprefix(new)
    if _found(key) is not None:
        return key
    ends = [known for known in KEYS if known.endswith(f".{key}")]
    if len(ends) > 1:
        raise UserError(f"'{key}' is the end of {' and of '.join(ends)}; write it in full")
    return ends[0] if ends else key


_INTERPOLATION = re.compile(r"\$\{([^${}]+)\}")


@dataclass(slots=True)
class Notes:
    """Notes for the reader of the recipe, in the order of translation."""

    differs: list[str] = field(default_factory=list)  # no counterpart, and the run differs
    unneeded: list[str] = field(default_factory=list)  # no counterpart needed
    remarks: list[str] = field(default_factory=list)  # converted to another unit, or set by default


@dataclass(frozen=True, slots=True)
class VerlRun:
    """A verl run: ``values`` by verl's full keys, and the user's options.

    ``excerpt``: the text is not complete, so missing sizes default to those of verl's one-GPU
    example and not to verl's defaults. ``train_rows`` and ``reward`` are the options of the command
    line. ``unread``: keys whose value the text does not tell, and why.
    """

    values: Mapping[str, Any]
    excerpt: bool
    notes: Notes
    train_rows: int | None = None
    reward: str | None = None
    unread: Mapping[str, str] = field(default_factory=dict)

    def has(self, key: str) -> bool:
        """Return whether the key is set to something other than null."""
        return self.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value with its interpolations resolved; ``default`` for null and absent.

        Raises UserError for a value that the text does not tell.
        """
        value = self._resolve(key, ()) if key in self.values else None
        return default if value is None else value

    def shown(self, key: str) -> Any:
        """Return the value for a note: as written, where an interpolation cannot be resolved."""
        try:
            return self.get(key)
        except UserError:  # of a key without counterpart, so the value is not needed
            return self.values[key]

    def number(self, key: str, default: float) -> float:
        """Return a number; text such as ``1e-6`` is one."""
        value = self.get(key, default)
        with suppress(TypeError, ValueError):  # reported below, with the key
            if not isinstance(value, bool):
                return float(value)
        raise UserError(f"{key} = {value!r} is not a number; set it to one")

    def count(self, key: str, default: int) -> int:
        """Return a whole number."""
        value = self.number(key, default)
        if not value.is_integer():
            raise UserError(f"{key} = {value:g} is not a whole number; set it to one")
        return int(value)

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers."""
        value = self.get(key)
        try:
            return [float(each) for each in value]
        except (TypeError, ValueError):
            raise UserError(f"{key} = {value!r} is no list of numbers; set it to one") from None

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a truth value."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise UserError(f"{key} = {value!r} is neither True nor False; set it to one of them")
        return value

    def choice(self, key: str, names: Mapping[str, str] | Sequence[str] = ()) -> str:
        """Return our name of the value, by ``names`` or those that ``keys.yaml`` has for the key;
        any other value is refused."""
        fate = KEYS.get(key, Fate())
        names = names or fate.names
        value = str(self.get(key, fate.default or next(iter(names))))
        if value not in names:
            raise UserError(
                f"{key} = {value!r} has no counterpart; {', '.join(names)} have"
                f"{did_you_mean(value, names)}"
            )
        return names[value] if isinstance(names, Mapping) else value

    def read(self, key: str, kind: str | Sequence[str]) -> Any:
        """Return a value that is set, read as the ``kind`` of a ``Fate``."""
        match kind:
            case "number":
                return self.number(key, 0.0)
            case "count":
                return self.count(key, 0)
            case "top_k":
                return self.count(key, 0) or -1
            case "flag":
                return self.flag(key)
            case "text":
                return str(self.get(key))
        return self.choice(key, kind)

    def note(self, text: str) -> None:
        """Note how something was read."""
        if text not in self.notes.remarks:
            self.notes.remarks.append(text)

    def _resolve(self, key: str, seen: tuple[str, ...]) -> Any:
        if key in seen:
            raise UserError(f"{key} refers to itself over {' -> '.join((*seen, key))}")
        if key in self.unread:
            raise UserError(f"{key}: {self.unread[key]}")
        value = self.values[key]
        while isinstance(value, str) and (match := _INTERPOLATION.search(value)):
            inner = self._interpolated(match[1], key, (*seen, key))
            if match.span() == (0, len(value)):
                value = inner
            else:
                text = "null" if inner is None else inner
                value = f"{value[: match.start()]}{text}{value[match.end() :]}"
        return value

    def _interpolated(self, expression: str, key: str, seen: tuple[str, ...]) -> Any:
        """Return the value of ``a.b``, ``.sibling`` or ``oc.select:a.b,default``."""
        resolver, separator, argument = expression.partition(":")
        if separator and resolver != "oc.select":
            raise UserError(
                f"{key}: ${{{expression}}} is a resolver that is not read here; write its value"
            )
        target, comma, fallback = (argument if separator else expression).partition(",")
        target = target.strip()
        if target.startswith("."):
            target = f"{key.rsplit('.', 1)[0]}{target}"
        if target in self.values:
            return self._resolve(target, seen)
        if separator:
            return yaml.safe_load(fallback) if comma else None
        raise UserError(f"{key}: ${{{expression}}} refers to '{target}', which is not set; set it")
