"""What a person names of a store: a run, a model, KIND/KEY, digits of a digest, a directory."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from rlcore.models.files import model_directory
from rlcore.results.folders import EXPORT, LATEST, RUNS, run_folder, run_names
from rlcore.results.provenance import INPUTS
from rlcore.results.run import Run
from rlcore.store.checks import MANIFEST, ArtifactError, file_digest
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef, Manifest
from schemas.errors import UserError, did_you_mean


def model_path(name: str, runs: Path) -> str:
    """Return the directory of the model of the run ``name``, its export or its policy where it has
    none; ``name`` itself where no run below ``runs`` has it: a directory, or a name of the hub.

    Raises UserError with the nearest run where it can be neither, and for a run without a policy.
    """
    if run_folder(name, runs) is None and name != LATEST:
        known = run_names(runs)
        if "/" not in name and not Path(name).is_dir() and (meant := did_you_mean(name, known)):
            raise UserError(f"'{name}' is neither a model directory nor a run in {runs}{meant}")
        return name
    run = Run.open(name, runs)
    ref = run.result("export") or run.result(run.recipe.policies[-1])
    if ref is None:
        raise UserError(
            f"the run '{run.name}' has no policy yet; it has come to {', '.join(run.stages)}; let"
            " it finish, or run its recipe again to continue it"
        )
    return str(model_directory(run.store.directory(ref)))


LEAST_DIGITS = 6
SHOWN = 12  # digits of a digest
_DIGITS = re.compile(r"[0-9a-f]{6,64}")


def subject(name: str, store: str, runs: Path = RUNS) -> tuple[ArtifactReader, list[ArtifactRef]]:
    """Return the store and the artifacts that ``name`` means: of a run its last result, or
    the newest iteration where RL has not ended; of a file, or digits of its sha256, the records of
    the stages that read it.

    Raises UserError with the nearest name where there is none, or several.
    """
    bare = name.removeprefix(f"{runs}/").rstrip("/")
    if run_folder(bare, runs) is not None:
        return _of_run(Run.open(bare, runs))
    if Path(name).is_dir():
        return _of_directory(Path(name), ArtifactReader(store))
    reader = ArtifactReader(store)
    if Path(name).is_file():
        return reader, _of_file(Path(name), reader)
    manifests = _manifests(reader)
    exact = [m for m in manifests if f"{m.kind}/{m.key}" == name]
    if not exact and "/" in name and name.partition("/")[0] in reader.kinds():
        kind, _, key = name.partition("/")
        if key in reader.keys(kind):  # its manifest is damaged
            raise ArtifactError(f"{name} cannot be followed: its {MANIFEST} is damaged")
    if not exact and _DIGITS.fullmatch(name):
        exact = [m for m in manifests if m.sha256.startswith(name) or m.key.startswith(name)]
        exact = [m for m in exact if m.sha256.startswith(name)] or exact
        if not exact and (read := _that_read(name, reader)):
            return reader, read
    if len(exact) == 1:
        return reader, [exact[0].ref()]
    if exact:
        there = ", ".join(f"{m.kind}/{m.key}" for m in exact[:4])
        more = f" and {len(exact) - 4} more" if len(exact) > 4 else ""
        raise UserError(f"'{name}' names {len(exact)} artifacts: {there}{more}; give KIND/KEY")
    known = [f"{runs}/{LATEST}", *run_names(runs), *(f"{m.kind}/{m.key}" for m in manifests)]
    raise UserError(
        f"there is no run in {runs} and no artifact in {reader.root} that '{name}' names"
        f"{did_you_mean(name, known)}; give a run, KIND/KEY, {LEAST_DIGITS} or more digits of a"
        " digest, or a directory"
    )


def _of_run(run: Run) -> tuple[ArtifactReader, list[ArtifactRef]]:
    stages = list(run.stages.values())
    for stage in reversed(stages):
        if stage.sha256 is not None:
            return run.store, [
                ArtifactRef(
                    kind=stage.result_kind, key=stage.result_key, uri="", sha256=stage.sha256
                )
            ]
        last = f"{stage.records_key}/{run.recipe.rl.iterations:06d}"
        records = run.store.keys("iterations", f"{stage.records_key}/")
        records = [key for key in records if key <= last]  # a longer run may have continued here
        if records and (ref := run.store.find("iterations", records[-1])) is not None:
            return run.store, [ref]
    raise UserError(f"the run '{run.name}' has made nothing yet; its stage {stages[-1].stage} runs")


def _of_file(file: Path, reader: ArtifactReader) -> list[ArtifactRef]:
    """Return the records of the stages that read this file as it is now."""
    digest = file_digest(file)
    if found := _that_read(digest, reader):
        return found
    url = str(file.expanduser().absolute())
    before = [row["digest"] for _, rows in _inputs(reader) for row in rows if row["url"] == url]
    read = f"; they read it as {before[0][:SHOWN]}, and it has changed since" if before else ""
    raise UserError(
        f"no run of the store {reader.root} read '{file}' as it is, sha256 {digest[:SHOWN]}{read};"
        " give a file that one read, or digits of its sha256 then"
    )


def _that_read(digits: str, reader: ArtifactReader) -> list[ArtifactRef]:
    """Return the records of the stages that read a file whose sha256 begins with ``digits``."""
    return [
        ref
        for ref, rows in _inputs(reader)
        if any(row["digest"].startswith(digits) for row in rows)
    ]


def _inputs(reader: ArtifactReader) -> Iterator[tuple[ArtifactRef, list[dict[str, str]]]]:
    for manifest in reader.manifests(lambda damage: None, kinds=[INPUTS]):
        ref = manifest.ref()
        yield ref, reader.table(ref, INPUTS).to_dicts()


def _of_directory(
    directory: Path, reader: ArtifactReader
) -> tuple[ArtifactReader, list[ArtifactRef]]:
    """Return the artifact that a directory is, lies in, or is a copy of the files of."""
    for place in (directory.resolve(), *directory.resolve().parents):
        if (place / MANIFEST).is_file():
            raw = Manifest.model_validate_json((place / MANIFEST).read_bytes())
            root = place.as_posix().removesuffix(f"/{raw.kind}/{raw.key}")
            return ArtifactReader(root), [raw.ref()]
    weights = sorted(directory.glob("*.safetensors"))
    if not weights:
        raise UserError(
            f"'{directory}' is neither an artifact nor an exported model: it holds no {MANIFEST}"
            " and no *.safetensors; give a run, KIND/KEY, or digits of a digest"
        )
    digests = {path.name: file_digest(path) for path in weights}
    made = [
        manifest
        for manifest in _manifests(reader)
        if digests.items()
        <= {Path(name).name: entry.sha256 for name, entry in manifest.files.items()}.items()
    ]
    if not made and (origin := _origin(directory, digests)) is not None:
        return reader, [origin]
    if not made:
        raise UserError(
            f"no artifact of {reader.root} holds the weights of '{directory}': they were changed,"
            " or made in another store; name that one with --store"
        )
    exported = [manifest for manifest in made if manifest.kind == "export"] or made
    return reader, [max(exported, key=lambda manifest: manifest.created_at).ref()]


def _origin(directory: Path, digests: dict[str, str]) -> ArtifactRef | None:
    """Return the artifact that an exported model says its weights are of; None where it says
    nothing, or other files of weights lie there now."""
    if not (directory / EXPORT).is_file():
        return None
    origin = json.loads((directory / EXPORT).read_text(encoding="utf-8")).get("origin")
    if origin is None or origin["weights"] != digests:
        return None
    return ArtifactRef(kind=origin["kind"], key=origin["key"], uri="", sha256=origin["sha256"])


def _manifests(reader: ArtifactReader) -> list[Manifest]:
    """Return those of all artifacts, and of what was pruned last and not made again."""
    pruned = sorted(reader.pruned.below().values(), key=lambda each: each.at)
    gone = [each.manifest for each in pruned]
    there = reader.manifests(lambda damage: None)
    return list({(m.kind, m.key): m for m in [*gone, *there]}.values())
