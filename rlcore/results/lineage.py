"""What an artifact was made from, and what was made from it, each artifact verified.

Breadth first over the parents in manifests: an artifact is listed once, however many paths lead to
it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlcore.results.provenance import (
    CODE,
    CODE_FILE,
    INPUTS,
    MICRO_BATCH_TOKENS,
    RECIPE,
    RECIPE_FILE,
    RESHARDED,
    layout_text,
)
from rlcore.store.artifacts import ArtifactError, DamagedArtifact
from rlcore.store.checks import file_digest, manifest_seal
from rlcore.store.fingerprint import module_digest
from rlcore.store.reader import ArtifactReader
from rlcore.store.tombstones import Pruned, PrunedArtifact
from schemas.artifacts import ArtifactRef, Manifest

PRUNED = "checkpoint"  # dropped when superseded, so that a missing one is no damage
SELF = "self"
UNCHANGED, CHANGED, GONE = "unchanged", "changed", "gone"  # what an input is now
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Node:
    """An artifact of a lineage; ``depth``: steps from the subject; ``role``: as what the artifact
    one step nearer to the subject used it, or forward what it used that one as.

    ``problem``: damage, or that it is gone; ``note``: when and why it was pruned; ``sealed``:
    whether its manifest can prove that it was not edited (``check_seal``).
    """

    ref: ArtifactRef
    depth: int
    role: str
    manifest: Manifest | None = None
    problem: str | None = None
    note: str | None = None
    sealed: bool = True
    pruned: bool = False

    @property
    def name(self) -> str:
        """Kind and key."""
        return f"{self.ref.kind}/{self.ref.key}"


@dataclass
class Trace:
    """The artifacts of a lineage, nearest first, and the texts that they hold, each once.

    An input, a file or repository outside the store, has what it is ``now``: unchanged, changed,
    gone, or "not looked at" where that takes more than reading a file of this machine.
    """

    nodes: list[Node]
    inputs: list[dict[str, str]] = field(default_factory=list)
    recipes: list[dict[str, Any]] = field(default_factory=list)
    code: list[dict[str, Any]] = field(default_factory=list)

    @property
    def smaller_passes(self) -> dict[tuple[int, int], list[Node]]:
        """What was made with fewer tokens per pass than the recipe says, since a learner had run
        out of memory: by the recipe's figure and the one used."""
        found: dict[tuple[int, int], list[Node]] = {}
        for node in self.nodes:
            if node.manifest and (sizes := node.manifest.metadata.get(MICRO_BATCH_TOKENS)):
                found.setdefault((sizes["recipe"], sizes["used"]), []).append(node)
        return found

    @property
    def resharded(self) -> dict[str, list[Node]]:
        """What was made after a stage had continued with other ranks, by what changed."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for change in node.manifest.metadata.get(RESHARDED, []) if node.manifest else []:
                before, after = layout_text(change["before"]), layout_text(change["after"])
                said = f"{after} instead of {before} after step {change['step']}"
                found.setdefault(said, []).append(node)
        return found

    @property
    def problems(self) -> list[Node]:
        """The artifacts that are damaged or missing."""
        return [node for node in self.nodes if node.problem is not None]

    @property
    def moved(self) -> list[dict[str, str]]:
        """The inputs that are not what was read any more."""
        return [one for one in self.inputs if one["now"] in (CHANGED, GONE)]

    @property
    def unsealed(self) -> list[Node]:
        """The artifacts whose parents and producer are those of the manifest, unproven."""
        return [node for node in self.nodes if not node.sealed]


def trace(store: ArtifactReader, start: Sequence[ArtifactRef], *, forward: bool = False) -> Trace:
    """Return all artifacts that ``start`` was made from, or ``forward`` that were made from it.

    Every one is verified, all its files included; damaged and missing ones are in the result, and
    pruned ones with the manifest that was kept of them. Raises ArtifactError where the store cannot
    be read.
    """
    damage: list[str] = []
    known = {(m.kind, m.key): m for m in store.manifests(damage.append)}
    gone = [pruned.manifest for pruned in store.pruned.below().values()] if forward else []
    children = _children([*known.values(), *gone]) if forward else {}
    found: dict[tuple[str, str, str], Node] = {}
    layer, depth = [(SELF, ref) for ref in start], 0
    while layer:
        following: list[tuple[str, ArtifactRef]] = []
        for role, ref in layer:
            name = (ref.kind, ref.key, ref.sha256)
            if name in found:
                continue
            node = _checked(store, ref, known.get((ref.kind, ref.key)), depth, role)
            found[name] = node
            if forward:
                following += children.get(name, [])
            elif node.manifest is not None:
                following += node.manifest.parents.items()
        layer, depth = following, depth + 1
    result = Trace(list(found.values()))
    for node in result.nodes:
        if node.problem is None and not node.pruned:
            _read(store, node, result)
    unique = {tuple(read.values()): read for read in result.inputs}.values()
    result.inputs = [{**read, "now": _now(**read)} for read in unique]
    return result


def fold(nodes: Sequence[Node]) -> list[tuple[list[Node], str]]:
    """Return ``nodes`` with the records of a run's iterations taken together, and a name for each.

    What has a problem is listed alone.
    """
    groups: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes:
        run, slash, _ = node.ref.key.rpartition("/")
        alone = not slash or node.problem is not None
        group = (node.name, node.ref.sha256) if alone else (node.ref.kind, run, node.note or "")
        groups.setdefault(group, []).append(node)
    return [(found, _folded_name(found)) for found in groups.values()]


def _folded_name(nodes: Sequence[Node]) -> str:
    if len(nodes) == 1:
        return nodes[0].ref.key
    keys = sorted(node.ref.key for node in nodes)
    return f"{keys[0]} .. {keys[-1].rpartition('/')[2]}"


def _children(
    manifests: Sequence[Manifest],
) -> dict[tuple[str, str, str], list[tuple[str, ArtifactRef]]]:
    made: dict[tuple[str, str, str], list[tuple[str, ArtifactRef]]] = {}
    for manifest in manifests:
        for role, parent in manifest.parents.items():
            name = (parent.kind, parent.key, parent.sha256)
            made.setdefault(name, []).append((role, manifest.ref()))
    return made


def _checked(
    store: ArtifactReader, ref: ArtifactRef, manifest: Manifest | None, depth: int, role: str
) -> Node:
    """Return the node of ``ref``, its content verified."""
    try:
        store.verify(ref)
        sealed = store.check_seal(ref)
    except DamagedArtifact as damage:
        same = manifest if manifest is not None and manifest.sha256 == ref.sha256 else None
        return Node(ref, depth, role, same, problem=damage.fault)
    except PrunedArtifact as gone:
        return _pruned(ref, depth, role, gone.pruned)
    except ArtifactError as error:
        if manifest is None and ref.kind == PRUNED:
            return Node(ref, depth, role, note="pruned: a later checkpoint superseded it")
        gone = "is missing from the store" if manifest is None else str(error)
        return Node(ref, depth, role, problem=gone)
    assert manifest is not None, "it was verified"
    return Node(ref, depth, role, manifest, sealed=sealed)


def _pruned(ref: ArtifactRef, depth: int, role: str, pruned: Pruned) -> Node:
    """Return the node of an artifact of which the manifest alone was kept."""
    seal = pruned.fields.get("seal")
    if seal and manifest_seal(pruned.fields) != seal:
        changed = f"{pruned.sentence()}; the manifest that was kept of it was changed since"
        return Node(ref, depth, role, problem=changed, pruned=True)
    return Node(
        ref, depth, role, pruned.manifest, note=pruned.sentence(), sealed=bool(seal), pruned=True
    )


def _now(source: str, url: str, digest: str) -> str:
    """Return what has become of a file since it was read with this sha256; of a user's function,
    of its module and what that imports from beside it."""
    if "://" in url or not _SHA256.fullmatch(digest):
        return "not looked at"
    path, (module, is_function, _) = Path(url), source.partition(":")
    try:
        if is_function and path.suffix == ".py":
            name = path.stem if module.endswith(".py") else module
            found = module_digest(name, path)
        else:
            found = file_digest(path)
        return UNCHANGED if found == digest else CHANGED
    except (FileNotFoundError, NotADirectoryError):
        return GONE
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _read(store: ArtifactReader, node: Node, into: Trace) -> None:
    """Add what a recipe, code or inputs artifact says to ``into``."""
    ref = node.ref
    if ref.kind == INPUTS:
        into.inputs += store.table(ref, INPUTS).to_dicts()
    elif ref.kind == RECIPE and node.manifest is not None:
        text = (store.directory(ref) / RECIPE_FILE).read_text(encoding="utf-8")
        into.recipes.append({"digest": ref.key, **node.manifest.metadata, "text": text})
    elif ref.kind == CODE:
        text = (store.directory(ref) / CODE_FILE).read_text(encoding="utf-8")
        into.code.append(json.loads(text))
