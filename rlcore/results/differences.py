"""In what runs differ: keys of their recipes, the code of their stages, the data that they read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlcore.recipe_text import leaves
from rlcore.results.run import Run
from schemas.artifacts import Manifest

NAMES = ("name", "description")  # of a recipe: they say nothing about what is computed
DIGITS = 12  # of a digest that is shown
READ = ("base_model", "prepare_data")  # stages whose results are what a run starts from


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that runs do not have in common; ``values``: one per run, None where it has
    none."""

    part: Literal["recipe", "code", "data"]
    name: str
    values: tuple[str | None, ...]


def differing_settings(runs: Sequence[Run]) -> list[Setting]:
    """Return in what ``runs`` differ: recipe, then code, then data. Raises ArtifactError where a
    result of theirs is damaged, UserError for a run without records."""
    manifests = [_manifests(run) for run in runs]
    stages = list(dict.fromkeys(stage for made in manifests for stage in made))
    code = {
        stage: tuple(_short(made, stage, "code_fingerprint") for made in manifests)
        for stage in stages
    }
    data = {
        stage: tuple(_short(made, stage, "sha256") for made in manifests)
        for stage in READ
        if stage in stages
    }
    inputs = [_inputs(run, made) for run, made in zip(runs, manifests, strict=True)]
    return [
        *recipe_differences([run.recipe.model_dump(mode="json") for run in runs]),
        *(Setting("code", stage, values) for stage, values in code.items() if _differ(values)),
        *(Setting("data", stage, values) for stage, values in data.items() if _differ(values)),
        *(
            Setting("data", url, values)
            for url in dict.fromkeys(url for read in inputs for url in read)
            if len(set(values := tuple(read.get(url) for read in inputs))) > 1
            and all(inputs)  # a store of before has no such table
        ),
    ]


def recipe_differences(recipes: Sequence[Mapping[str, Any]]) -> list[Setting]:
    """Return the dotted keys whose values are not the same in all ``recipes``, in their order."""
    flat = [{key: _text(value) for key, value in leaves(recipe)} for recipe in recipes]
    keys = dict.fromkeys(key for recipe in flat for key in recipe if key not in NAMES)
    rows = [Setting("recipe", key, tuple(recipe.get(key) for recipe in flat)) for key in keys]
    return [row for row in rows if len(set(row.values)) > 1]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _manifests(run: Run) -> dict[str, Manifest]:
    """Return the manifests of the results that the run has, by stage."""
    return {
        stage: manifest
        for stage, row in run.stages.items()
        if row.sha256 is not None
        and (manifest := run.store.peek(row.result_kind, row.result_key)) is not None
    }


def _short(made: Mapping[str, Manifest], stage: str, digest: str) -> str | None:
    return getattr(made[stage], digest)[:DIGITS] if stage in made else None


def _differ(values: Sequence[str | None]) -> bool:
    """Return whether two runs have different values; a stage that a run has not come to is none."""
    return len({value for value in values if value is not None}) > 1


def _inputs(run: Run, made: Mapping[str, Manifest]) -> dict[str, str]:
    """Return the digest of each file or dataset that the run's stages read, by its URL."""
    read: dict[str, str] = {}
    for stage, manifest in made.items():
        if "inputs" in manifest.schema_versions and (ref := run.result(stage)) is not None:
            rows = run.store.table(ref, "inputs")
            read |= {row["url"]: row["digest"][:DIGITS] for row in rows.iter_rows(named=True)}
    return read
