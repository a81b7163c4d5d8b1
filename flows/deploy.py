"""Deployments: one per recipe of ``flows/recipes``, which is their only source; another, with its
schedule, where the recipe is retrained; one of ``evolve``.

A plain script instead of ``prefect.yaml``, which would repeat every recipe's name, description and
parameters. Needs a reachable server (``PREFECT_API_URL``); idempotent.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import DeploymentFilter, FlowFilter
from prefect.client.schemas.objects import (
    ConcurrencyLimitConfig,
    ConcurrencyLimitStrategy,
    FlowRun,
    StateType,
)
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments.runner import RunnerDeployment
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.runner.storage import LocalStorage
from prefect.schedules import Cron, Schedule
from prefect.types.entrypoint import EntrypointType

from flows.evolve import evolve
from flows.flow_runs import CATCH_UP, POOL
from flows.paths import AUTOMATIONS, RECIPES, ROOT
from flows.retrain import retrain
from flows.rl_pipeline import rl_pipeline
from rlcore.recipes.load import load_recipe, read_tree, recipe_names
from schemas.errors import UserError
from schemas.retrain import RetrainSection
from tasks.runtime.crashes import in_states

# Marks the deployments that this script may remove; beside it is their family, such as gsm8k.
TAG = "recipe"
OWN_TAG = "own-recipe"  # of ``deploy_own``: no bring-up touches them
EVOLVE = "model"  # the deployment of flow ``evolve``
RETRAIN_SLUG = "retrain"  # of the schedule of a recipe that has the section ``retrain``
# Locations of data, models and devices, passed to runs with their values at deployment. No secrets:
# a deployment is stored in the server's database, unlike the worker's environment; nor the server's
# address, which may be another by the time of a run.
PASSED_ON = (
    "CUDA_VISIBLE_DEVICES",
    "GSM8K_DIR",
    "HF_DATASETS_OFFLINE",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "WANDB_MODE",
)
_ONE_AT_A_TIME = ConcurrencyLimitConfig(
    limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE
)


def ensure_pool(
    client: SyncPrefectClient,
    runs: int | None = None,
    *,
    kind: str = "process",
    template: dict[str, Any] | None = None,
) -> None:
    """Create the work pool, or set its limit: ``runs`` concurrent flow runs over all recipes; None:
    1 at first, then as it is.

    ``kind``: process or kubernetes; ``template``: of the jobs of the latter. Raises UserError where
    the pool is of the other kind.
    """
    try:
        pool = client.read_work_pool(POOL)
    except ObjectNotFound:
        created = WorkPoolCreate(name=POOL, type=kind, concurrency_limit=runs or 1)
        if template is not None:
            created.base_job_template = template
        client.create_work_pool(created)
        return
    if pool.type != kind:
        raise UserError(
            f"the work pool '{POOL}' of this server is of type {pool.type}, and not {kind}: runs of"
            f" both cannot share it; start a worker of type {pool.type}, or delete the pool with"
            f" `prefect work-pool delete {POOL}`"
        )
    update = WorkPoolUpdate() if runs is None else WorkPoolUpdate(concurrency_limit=runs)
    if template is not None:
        update.base_job_template = template
    client.update_work_pool(POOL, update)


def ensure_automations(client: SyncPrefectClient, path: Path = AUTOMATIONS) -> None:
    """Create the automations of a YAML list by name; one whose definition changed is replaced."""
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")):
        wanted = AutomationCore.model_validate(entry)
        existing = client.read_automations_by_name(wanted.name)
        fields = set(AutomationCore.model_fields)
        same = [a for a in existing if a.model_dump(include=fields) == wanted.model_dump()]
        for automation in existing:
            if automation not in same[:1]:
                client.delete_automation(automation.id)
        if not same:
            client.create_automation(wanted)


def deploy_all() -> list[str]:
    """Deploy the recipes of ``RECIPES``, as ``deploy_recipes`` does, and the flow ``evolve``;
    return their names."""
    return [*deploy_recipes(rl_pipeline, retrain), deploy_evolve(evolve)]


def deploy_recipes(
    flow: Flow[..., Any],
    retraining: Flow[..., Any],
    *,
    recipes: Path = RECIPES,
) -> list[str]:
    """Deploy every recipe, and remove the deployments of recipes that are gone; return the names.

    ``retraining``: the flow that those with a section ``retrain`` are deployed of, too.
    A schedule that was switched off stays off. Runs work in ``ROOT``: after moving a checkout,
    deploy again. Raises UserError for a section ``retrain`` that cannot be used.
    """
    variables = _variables()
    names = recipe_names(recipes)
    retrained = [name for name in names if read_tree(name, recipes).get("retrain") is not None]
    with get_client(sync_client=True) as client:
        for name in names:
            _deploy(client, flow, recipes / f"{name}.yaml", variables, ROOT)
        before = _deployed(client, retraining.name)
        for name in retrained:
            section = load_recipe(name, directory=recipes).retrain
            schedule = _schedule(section, before.get(name))
            file = recipes / f"{name}.yaml"
            _deploy(client, retraining, file, variables, ROOT, schedule=schedule)
        _delete_others(client, flow.name, names)
        _delete_others(client, retraining.name, retrained)
    return names


def deploy_own(
    flow: Flow[..., Any],
    path: Path,
    retraining: Flow[..., Any] | None = None,
    *,
    root: Path = ROOT,
) -> str:
    """Deploy the recipe file ``path`` of a user's; return the deployment's name, its recipe's.

    ``retraining``: see ``deploy_recipes``; without it none is deployed. Modules in the file's
    folder can be imported by its runs. Raises UserError for a recipe that cannot be used, and when
    a recipe of ``RECIPES``, or the deployment of another file, has the name.
    """
    path = path.expanduser().resolve()
    recipe = load_recipe(str(path), directory=RECIPES)
    name = recipe.name
    if name in recipe_names(RECIPES):
        raise UserError(
            f"recipe file '{path}': name = '{name}' is that of a deployment of this project; give"
            " it another name"
        )
    modules = os.pathsep.join(filter(None, (str(path.parent), os.environ.get("PYTHONPATH"))))
    variables = {**_variables(), "PYTHONPATH": modules}
    with get_client(sync_client=True) as client:
        for deployed in (flow, retraining):
            if deployed is not None:
                _refuse_another(_deployed(client, deployed.name).get(name), deployed.name, path)
        _deploy(client, flow, path, variables, root, own=name)
        if recipe.retrain is not None and retraining is not None:
            schedule = _schedule(recipe.retrain, _deployed(client, retraining.name).get(name))
            _deploy(client, retraining, path, variables, root, own=name, schedule=schedule)
    return name


def _refuse_another(existing: DeploymentResponse | None, flow_name: str, path: Path) -> None:
    """Raise UserError where the deployment of that name is not that of the recipe file ``path``:
    runs and schedules that name it would silently train something else."""
    if existing is None or existing.parameters.get("recipe") == str(path):
        return
    deployment = f"{flow_name}/{existing.name}"
    raise UserError(
        f"recipe file '{path}': name = '{existing.name}' is that of the deployment {deployment} of"
        f" recipe '{existing.parameters.get('recipe')}'; give it another name, or take that one"
        f" away with `prefect deployment delete {deployment}`"
    )


def deploy_evolve(flow: Flow[..., Any]) -> str:
    """Deploy the flow ``evolve``, whose parameters name model and recipe; return the deployment's
    name. Its runs work in ``ROOT``, one after the other."""
    said = "A model improves its answers to a recipe's problems over rounds."
    _apply(flow, ROOT, _variables(), name=EVOLVE, description=said)
    return EVOLVE


def _variables() -> dict[str, str]:
    """Return those of ``PASSED_ON`` that are set here."""
    return {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}


def _deploy(
    client: SyncPrefectClient,
    flow: Flow[..., Any],
    path: Path,
    environment: dict[str, str],
    root: Path,
    *,
    own: str | None = None,
    schedule: Schedule | None = None,
) -> None:
    """Make or replace the deployment of the recipe file ``path``. ``own``: the deployment's name,
    where the recipe is a user's, whose runs are given its path."""
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    name = own or path.stem
    missed = _missed(client, flow.name, name) if schedule is not None else None
    made = _apply(
        flow,
        root,
        environment,
        name=name,
        description=content.get("description", ""),
        tags=[TAG, path.stem.partition("-")[0]] if own is None else [OWN_TAG],
        parameters={"recipe": path.stem if own is None else str(path), "overrides": {}},
        schedules=[] if schedule is None else [schedule],
    )
    if missed is not None and schedule is not None and schedule.active:
        client.create_flow_run_from_deployment(made, parameters=missed.parameters, tags=[CATCH_UP])
    if schedule is None:  # which Prefect takes for: leave them as they are
        _delete_schedules(client, made)


def _apply(flow: Flow[..., Any], root: Path, environment: dict[str, str], **described: Any) -> UUID:
    """Make or replace the deployment ``described``, whose runs work in ``root``, one after the
    other; return its id."""
    deployment = RunnerDeployment.from_flow(
        flow,
        enforce_parameter_schema=True,
        concurrency_limit=_ONE_AT_A_TIME,
        work_pool_name=POOL,
        job_variables={"env": environment},
        entrypoint_type=EntrypointType.MODULE_PATH,
        **described,
    )
    deployment.storage = LocalStorage(str(root))
    made = deployment.apply(work_pool_name=POOL)
    assert isinstance(made, UUID), "in a plain function it is not a coroutine"
    return made


def _missed(client: SyncPrefectClient, flow_name: str, name: str) -> FlowRun | None:
    """Return the newest run that a schedule made and that is due, which deploying again removes;
    None where there is none, or a run that makes up for one waits already."""
    existing = _deployed(client, flow_name).get(name)
    if existing is None:
        return None
    now = datetime.now(UTC)
    due = client.read_flow_runs(
        deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [existing.id]}}),
        flow_run_filter=in_states([StateType.SCHEDULED], expected_start_time={"before_": now}),
    )
    if any(CATCH_UP in run.tags for run in due):
        return None
    made = [run for run in due if run.auto_scheduled]
    return max(made, key=lambda run: str(run.expected_start_time), default=None)


def _delete_schedules(client: SyncPrefectClient, deployment: UUID) -> None:
    """Remove the schedules of ours; those that people made stay."""
    for old in client.read_deployment(deployment).schedules:
        if old.slug == RETRAIN_SLUG:
            path = {"id": deployment, "schedule_id": old.id}
            client.request("DELETE", "/deployments/{id}/schedules/{schedule_id}", path_params=path)


def _delete_others(client: SyncPrefectClient, flow_name: str, names: list[str]) -> None:
    for name, old in _deployed(client, flow_name).items():
        if name not in names and TAG in old.tags:
            client.delete_deployment(old.id)


def _schedule(
    section: RetrainSection | None, existing: DeploymentResponse | None
) -> Schedule | None:
    """Return when a recipe is retrained: switched on, unless it was switched off before."""
    if section is None or section.cron is None:
        return None
    before = [s for s in (existing.schedules if existing else []) if s.slug == RETRAIN_SLUG]
    active = all(schedule.active for schedule in before)
    return Cron(section.cron, timezone=section.timezone, active=active, slug=RETRAIN_SLUG)


def _deployed(client: SyncPrefectClient, flow_name: str) -> dict[str, DeploymentResponse]:
    named = FlowFilter.model_validate({"name": {"any_": [flow_name]}})
    found = client.read_deployments(flow_filter=named)
    return {deployment.name: deployment for deployment in found}
