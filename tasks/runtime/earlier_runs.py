"""The stage run with whose checkpoints another one continues: one that stopped half-way and was
begun by other code, which has to be accepted, or one that was to do fewer iterations.

The code is part of a stage's key, so after an edit a half-done run would begin again without a
message. A run of more iterations continues with a shorter one's checkpoints and records where
nothing that is done depends on how many there are to be; its result is what it would have made
alone.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlcore.learner.checkpoints import KIND
from rlcore.store.checks import DamagedArtifact, location
from rlcore.store.reader import ArtifactReader
from rlcore.store.versions import VERSION, code_parts, why
from schemas.artifacts import Manifest
from schemas.errors import UserError
from schemas.names import RECORDS
from schemas.recipe import Recipe
from tasks.runtime.keys import StageKeys, generation_key
from tasks.runtime.stage_keys import Declared

# Metadata of checkpoints.
ACCEPTED = "accepted_code"  # of what continued with other code
IDENTITY = "identity"  # the key of the stage run without the code
TRAJECTORY = "trajectory"  # ``StageKeys.trajectory`` of the stage run
TOTAL = "total"  # the iterations that the stage run was to do

SHOWN = 12  # digits of a digest in sentences
Log = Callable[[str], None]


class CodeDriftError(UserError):
    """A half-done run was made by other code, and it was not accepted."""


@dataclass(frozen=True, slots=True)
class HalfDone:
    """A stage run that left checkpoints.

    ``key``: of its checkpoints and records. ``code``: digest of what wrote the newest, and
    ``version`` of that of ours.
    """

    key: str
    step: int
    code: str
    version: str

    def refusal(self, stage: str, code: str, store: ArtifactReader) -> CodeDriftError:
        """Return the error for a run of ``stage`` with the digest ``code``."""
        before, after = self.version, code_parts(stage)[VERSION]
        steps = f" (version {before} -> {after}: {why(stage, before, after)})"
        return CodeDriftError(
            f"{stage}: a run of this recipe stopped after iteration {self.step}, and its code has"
            f" changed since: its digest was {self.code[:SHOWN]} and is {code[:SHOWN]}"
            f"{'' if before == after else steps}; run it with --accept-code (flow parameter"
            " accept_code: true) to continue with the new code, delete"
            f" {store.root}/{location(KIND, self.key)} to begin again, or check out the code that"
            " began it"
        )


@dataclass(frozen=True, slots=True)
class Shorter:
    """A stage run with the same steps that was to end sooner.

    ``key``: of its checkpoints and records; ``step``: of the newest checkpoint; ``total``: the
    iterations it was to do. ``obstacle``: why a run of more iterations cannot continue with it.
    """

    key: str
    step: int
    total: int
    obstacle: str | None

    def sentence(self) -> str:
        """Return what a run says that trains from 0."""
        return f"trains from 0 beside a run of {self.total} iterations: {self.obstacle}"


@dataclass(frozen=True, slots=True)
class _Begun:
    """A stage run that has checkpoints, and the manifest of its newest, ``step``."""

    key: str
    step: int
    manifest: Manifest


def continued_key(key: str, other: str) -> str:
    """Return the key of the result of a run ``key`` that continues with the checkpoints of
    ``other``, which other code wrote: it is what neither code alone would have made."""
    return hashlib.sha256(f"{key} continues {other}".encode()).hexdigest()[: len(key)]


def earlier_run(
    store: ArtifactReader,
    stage: Declared,
    keys: StageKeys,
    recipe: Recipe,
    generation: int,
    *,
    is_made: Callable[[str], bool],
    log: Log,
) -> HalfDone | Shorter | None:
    """Return the run with whose checkpoints a run of ``stage`` that has no result would continue:
    one of other code, else one of fewer iterations.

    Where it has checkpoints itself they alone count: its own where other code wrote the newest.
    What is made again, from generation 2, continues with nothing of others. ``is_made``: whether a
    result of a key is to be used.
    """
    if stage.resumes is None:
        return None
    key, steps = generation_key(keys.key, generation), _begun_runs(store)
    others = [] if generation > 1 else sorted(steps, key=lambda run: -steps[run])
    begun = [
        _Begun(run, steps[run], manifest)
        for run in ([key] if key in steps else others)
        if (manifest := newest_checkpoint(store, run, steps[run], log)) is not None
    ]
    other = _half_done(store, stage.kind, keys, begun, key, is_made, log)
    if other is not None or key in steps:
        return other
    return _shorter(stage, keys, recipe, begun)


def _half_done(
    store: ArtifactReader,
    kind: str,
    keys: StageKeys,
    begun: Sequence[_Begun],
    key: str,
    is_made: Callable[[str], bool],
    log: Log,
) -> HalfDone | None:
    """Return the run of other code that a run ``key`` would continue with; those with a result,
    which is of ``kind``, are passed over unless it is that of the two."""
    earlier = [
        one
        for one in begun
        if one.manifest.metadata.get(IDENTITY) == keys.identity
        and (
            one.manifest.code_fingerprint != keys.code
            or (one.key != key and ACCEPTED in one.manifest.metadata)
        )
    ]
    finished = _finished_runs(store, kind, log) if earlier else set()
    for one in earlier:
        if is_made(continued_key(key, one.key)) or one.key not in finished or one.key == key:
            version = one.manifest.metadata.get(VERSION, "0")
            return HalfDone(one.key, one.step, one.manifest.code_fingerprint, version)
    return None


def _shorter(
    stage: Declared, keys: StageKeys, recipe: Recipe, begun: Sequence[_Begun]
) -> Shorter | None:
    """Return the run of the same trajectory, not gone further, that can be continued and has the
    most steps, else the first that cannot."""
    refused = None
    for one in begun:
        metadata, total = one.manifest.metadata, keys.total
        if total is None or metadata.get(TRAJECTORY) != keys.trajectory or one.step > total:
            continue
        if one.manifest.code_fingerprint != keys.code or ACCEPTED in metadata:
            why_not: str | None = "other code made its checkpoints"
        else:
            assert stage.resumes is not None, "others have no iterations"
            why_not = stage.resumes(recipe, metadata[TOTAL], one.step)
        found = Shorter(one.key, one.step, metadata[TOTAL], why_not)
        if why_not is None:
            return found
        refused = refused or found
    return refused


def newest_checkpoint(store: ArtifactReader, key: str, step: int, log: Log) -> Manifest | None:
    """Return the manifest of the checkpoint ``step`` of a stage run; None where it is damaged."""
    return _manifest(store, KIND, f"{key}/{step:06d}", log)


def _begun_runs(store: ArtifactReader) -> dict[str, int]:
    """Return key -> newest step of all stage runs that have checkpoints."""
    steps: dict[str, int] = {}
    for name in store.keys(KIND):
        run, _, step = name.rpartition("/")
        if step.isdecimal():
            steps[run] = max(int(step), steps.get(run, 0))
    return steps


def _finished_runs(store: ArtifactReader, kind: str, log: Log) -> set[str]:
    """Return the keys of the checkpoints of all runs that have a result of ``kind``."""
    results = {name: _manifest(store, kind, name, log) for name in store.keys(kind)}
    continued = {m.metadata[RECORDS] for m in results.values() if m and RECORDS in m.metadata}
    return set(results) | continued


def _manifest(store: ArtifactReader, kind: str, key: str, log: Log) -> Manifest | None:
    try:
        return store.peek(kind, key)
    except DamagedArtifact as damage:
        log(f"{kind}/{key} is passed over: {damage.fault}")
        return None
