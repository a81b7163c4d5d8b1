"""A stage run that stopped half-way and would now continue with other code: found, refused,
accepted.

The code is part of a stage's key, so after an edit a half-done run has a key under which nothing is
found: it would begin again without a message, and what it had trained would be lost.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from rlcore.learner.checkpoints import KIND
from rlcore.store.checks import DamagedArtifact, location
from rlcore.store.reader import ArtifactReader
from rlcore.store.versions import VERSION, code_parts, why
from schemas.artifacts import Manifest
from schemas.errors import UserError
from schemas.names import RECORDS

ACCEPTED = "accepted_code"  # metadata of what continued with other code
IDENTITY = "identity"  # metadata of a checkpoint: the key of its stage run without the code
SHOWN = 12  # digits of a digest in sentences


class CodeDriftError(UserError):
    """A half-done run was made by other code, and it was not accepted."""


@dataclass(frozen=True, slots=True)
class HalfDone:
    """A stage run that left checkpoints.

    ``key``: of its checkpoints and records. ``code``: digest of what wrote the newest, and
    ``version`` of that of ours, where it was recorded.
    """

    key: str
    step: int
    code: str
    version: str | None = None

    def refusal(self, stage: str, code: str, store: ArtifactReader) -> CodeDriftError:
        """Return the error for a run of ``stage`` with the digest ``code``."""
        before, after = self.version or "0", code_parts(stage)[VERSION]
        steps = f" (version {before} -> {after}: {why(stage, before, after)})"
        checkpoints = f"{store.root}/{location(KIND, self.key)}"
        return CodeDriftError(
            f"{stage}: a run of this recipe stopped after iteration {self.step}, and its code has"
            f" changed since: its digest was {self.code[:SHOWN]} and is {code[:SHOWN]}"
            f"{'' if before == after else steps}; run it with --accept-code (flow parameter"
            " accept_code: true) to continue with the new code, delete"
            f" {checkpoints} to begin again, or check out the code that began it"
        )


def continued_key(key: str, other: str) -> str:
    """Return the key of the result of a run ``key`` that continues with the checkpoints of
    ``other``, which other code wrote: it is what neither code alone would have made."""
    return hashlib.sha256(f"{key} continues {other}".encode()).hexdigest()[: len(key)]


def stopped_run(
    store: ArtifactReader,
    kind: str,
    *,
    key: str,
    identity: str,
    code: str,
    is_made: Callable[[str], bool],
    log: Callable[[str], None],
    alone: bool = False,
) -> HalfDone | None:
    """Return the run of other code that a run ``key`` of a stage would continue with; None where it
    would not.

    ``kind``: of the stage's result; ``is_made``: whether a result of that kind and a key is to be
    used. ``alone``: what other keys have begun does not count. Others: see ``earlier_runs``, of
    which those with a result are passed over.
    """
    earlier = earlier_runs(store, key=key, identity=identity, code=code, log=log)
    if alone:
        earlier = [other for other in earlier if other.key == key]
    finished = finished_runs(store, kind, log) if earlier else set()
    for other in earlier:
        if is_made(continued_key(key, other.key)):
            return other
        if other.key not in finished or other.key == key:
            return other
    return None


def earlier_runs(
    store: ArtifactReader,
    *,
    key: str,
    identity: str,
    code: str,
    log: Callable[[str], None],
) -> list[HalfDone]:
    """Return the runs with checkpoints that ``identity`` names and other code began, most steps
    first.

    ``key``, ``code``: of the run about to start. Where it has checkpoints itself they alone count:
    none of another run's, and its own where other code wrote the newest.
    """
    steps = begun_runs(store)
    candidates = [key] if key in steps else sorted(steps, key=lambda run: -steps[run])
    found = []
    for run in candidates:
        manifest = newest_checkpoint(store, run, steps[run], log)
        if manifest is None or manifest.metadata.get(IDENTITY) != identity:
            continue
        accepted = run != key and ACCEPTED in manifest.metadata
        if accepted or manifest.code_fingerprint != code:
            version = manifest.metadata.get(VERSION)
            found.append(HalfDone(run, steps[run], manifest.code_fingerprint, version))
    return found


def begun_runs(store: ArtifactReader) -> dict[str, int]:
    """Return key -> newest step of all stage runs that have checkpoints."""
    steps: dict[str, int] = {}
    for name in store.keys(KIND):
        run, _, step = name.rpartition("/")
        if step.isdecimal():
            steps[run] = max(int(step), steps.get(run, 0))
    return steps


def newest_checkpoint(
    store: ArtifactReader, key: str, step: int, log: Callable[[str], None]
) -> Manifest | None:
    """Return the manifest of the checkpoint ``step`` of a stage run; None where it is damaged."""
    return _manifest(store, KIND, f"{key}/{step:06d}", log)


def finished_runs(store: ArtifactReader, kind: str, log: Callable[[str], None]) -> set[str]:
    """Return the keys of the checkpoints of all runs that have a result of ``kind``."""
    results = {name: _manifest(store, kind, name, log) for name in store.keys(kind)}
    continued = {m.metadata[RECORDS] for m in results.values() if m and RECORDS in m.metadata}
    return set(results) | continued


def _manifest(
    store: ArtifactReader, kind: str, key: str, log: Callable[[str], None]
) -> Manifest | None:
    try:
        return store.peek(kind, key)
    except DamagedArtifact as damage:
        log(f"{kind}/{key} is passed over: {damage.fault}")
        return None
