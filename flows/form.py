"""The fields of a deployment's run form that stand for keys of the recipe, and what runs are
called."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.client.schemas.sorting import FlowRunSort
from prefect.runtime import flow_run

from rlcore.results.folders import flow_run_digits, run_directory
from schemas.errors import UserError

# Parameter of the flow rl-pipeline -> dotted key of the recipe.
FIELDS = {
    "seed": "seed",
    "iterations": "rl.iterations",
    "learning_rate": "rl.update.optimizer.lr",
    "prompts": "rl.rollout.prompts",
    "samples": "rl.rollout.samples",
}


def with_fields(overrides: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides by dotted key, those that were given as ``fields`` included; a field
    that is None was left empty.

    >>> with_fields({"seed": 1}, {"iterations": 5, "prompts": None})
    {'seed': 1, 'rl.iterations': 5}

    Raises UserError where both give a key, and not the same value.
    """
    merged = dict(overrides or {})
    for name, value in fields.items():
        key = FIELDS[name]
        if value is None:
            continue
        if key in merged and merged[key] != value:
            raise UserError(
                f"{name} = {value!r} and overrides['{key}'] = {merged[key]!r} are the same key of"
                " the recipe; leave one of the two out"
            )
        merged[key] = value
    return merged


def pipeline_name() -> str:
    """Return the name of the folder of the run that begins, e.g. quickstart-29e52650."""
    return run_directory(str(flow_run.parameters["recipe"]), str(flow_run.id)).name


def retrain_name() -> str:
    """Return e.g. yesno-retrain-3: the third retraining of the recipe that this server has seen."""
    stem = f"{_recipe()}-retrain-"
    with get_client(sync_client=True) as client:
        before = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(name=FlowRunFilterName(like_=stem)),
            sort=FlowRunSort.START_TIME_DESC,
        )
    digits = (flow_run_digits(run.name) for run in before if run.name.startswith(stem))
    return f"{stem}{max((int(n) for n in digits if n.isdecimal()), default=0) + 1}"


def evolve_name() -> str:
    """Return e.g. yesno-evolve-29e52650."""
    return f"{_recipe()}-evolve-{str(flow_run.id)[:8]}"


def _recipe() -> str:
    return Path(str(flow_run.parameters["recipe"])).stem
