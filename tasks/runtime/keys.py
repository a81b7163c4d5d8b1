"""What names a stage's result: the key made of content, the parts it was made of, its generation.

A stage that is made again (``refresh``) has the key of its content once more, with the number of
its generation behind it, so that the result before stays.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlcore.store.checks import DamagedArtifact
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe

KEY_DIGITS = 32  # 128 bits of sha256: short enough to read, far too many to collide
PART_DIGITS = 12  # of the digests that only name a difference
MADE_OF = "made_of"  # metadata of a result: the parts of its key
GENERATION = "generation"  # metadata of a result that was made again: its number, from 2

# (recipe, iterations that the other was to do, those it has done) -> why they cannot be
# continued, None where they can.
Obstacle = Callable[[Recipe, int, int], str | None]


@dataclass(frozen=True, slots=True)
class KeyParts:
    """What a key was made of, as JSON in the manifest of the result: why another key is another.

    ``recipe``: the stage's slice. ``parents``, ``inputs``: content digests by role. ``code``: the
    version of ours, that of each library, digests of a user's functions. Digests of files are cut.
    """

    stage: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, document: Any) -> "KeyParts | None":
        """Return what a manifest says of them, ``asdict``; None where it says nothing, or another
        version wrote it."""
        if not isinstance(document, dict) or set(document) != set(cls.__slots__):
            return None
        return cls(**document)


class StageKeys(NamedTuple):
    """What names a stage run: its content ``key``, the key without the code, the code's digest.

    ``reads``: what was read from outside the store for it (``outside.Read``), by role.
    ``trajectory``: the key without the code and without how many iterations there are to be, which
    are ``total``; None of a stage that has none.
    """

    key: str
    identity: str
    code: str
    parts: KeyParts
    reads: Mapping[str, str]
    trajectory: str | None = None
    total: int | None = None


def stage_key(
    stage: str,
    recipe_slice: Mapping[str, Any],
    parents: Mapping[str, ArtifactRef],
    code: str,
    inputs: Mapping[str, str] | None = None,
) -> str:
    """Return the content key (hex) of a stage's result.

    ``recipe_slice``: JSON values, from ``Recipe.slice_for``. Of the parents only role and content
    digest count, never where they lie. ``inputs``: content digests of what is read from outside the
    store (a model directory, source files), by role. The stage's name is in the key because equal
    inputs of two stages are not equal results.
    """
    content = {
        "stage": stage,
        "recipe": recipe_slice,
        "parents": {role: ref.sha256 for role, ref in parents.items()},
        "inputs": dict(inputs or {}),
        "code": code,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def generation_key(key: str, number: int) -> str:
    """Return the key of the ``number``-th result under the content key ``key``, from 1.

    >>> generation_key("k", 1), generation_key("k", 2)
    ('k', 'k.2')
    """
    return key if number == 1 else f"{key}.{number}"


def generations(store: ArtifactReader, kind: str, key: str) -> list[int]:
    """Return the numbers of the results under the content key ``key``, the newest first."""
    there = store.keys(kind, key)
    suffixes = [name.removeprefix(f"{key}.") for name in there if name.startswith(f"{key}.")]
    numbers = [int(suffix) for suffix in suffixes if suffix.isdecimal()]
    return sorted([*numbers, *([1] if key in there else [])], reverse=True)


def newest_generation(
    store: ArtifactReader,
    kind: str,
    key: str,
    is_whole: Callable[[str], bool],
    log: Callable[[str], None],
) -> int:
    """Return the newest generation whose own key ``is_whole`` accepts, and log where that is not
    the newest one; 1 where it accepts none."""
    numbers = generations(store, kind, key)
    for number in numbers:
        if is_whole(generation_key(key, number)):
            if number != numbers[0]:
                log(
                    f"generation {number} of {kind}/{key} is used, as generation {numbers[0]} is"
                    " damaged"
                )
            return number
    return 1


def fresh_generation(store: ArtifactReader, kind: str, key: str, producer: str) -> int:
    """Return the generation that the flow run ``producer`` makes again: the one after the newest,
    or that which it has made already, where it is retried."""
    numbers = generations(store, kind, key)
    own = (n for n in numbers if is_made_by(store, kind, generation_key(key, n), producer))
    return next(own, max(numbers, default=0) + 1)


def is_made_by(store: ArtifactReader, kind: str, key: str, producer: str) -> bool:
    """Return whether the flow run ``producer`` wrote an artifact, of which only the manifest is
    looked at."""
    try:
        manifest = store.peek(kind, key)
    except DamagedArtifact:
        return False
    return manifest is not None and manifest.producer == producer
