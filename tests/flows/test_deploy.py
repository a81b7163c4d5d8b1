"""A deployment is a recipe: the YAML file says it all, and deploying again changes nothing else."""

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleUpdate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowFilter,
    FlowFilterName,
)
from prefect.client.schemas.objects import FlowRun
from prefect.server.schemas.schedules import CronSchedule
from prefect.utilities.callables import parameter_schema

from flows import local
from flows.cli import main
from flows.deploy import (
    AUTOMATIONS,
    RETRAIN_SLUG,
    deploy_evolve,
    deploy_own,
    deploy_recipes,
    ensure_automations,
    ensure_pool,
)
from flows.flow_runs import CATCH_UP, POOL, cancel_waiting
from flows.paths import RECIPES
from schemas.errors import UserError
from schemas.stages import Stage

pytestmark = pytest.mark.timeout(120)


@flow(name="deploy-test")
def pipeline(recipe: str = "one", overrides: dict[str, Any] | None = None) -> None:
    """Do nothing."""


@flow(name="retrain-test")
def retraining(recipe: str = "one", overrides: dict[str, Any] | None = None) -> None:
    """Do nothing."""


@pytest.fixture
def client(prefect_server: str) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        ensure_pool(client, runs=1)
        yield client


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        text = yaml.safe_dump({"name": name, "description": f"What {name} does."})
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


@pytest.fixture
def retrained(recipes: Path) -> Path:
    """With the recipe three, which is retrained."""
    base = yaml.safe_load((RECIPES / "_quickstart.yaml").read_text())
    section = {"cron": "5 4 * * *", "timezone": "Europe/Berlin"}
    three = {**base, "name": "three", "retrain": section}
    (recipes / "three.yaml").write_text(yaml.safe_dump(three))
    return recipes


def _read(client: SyncPrefectClient, name: str, flow: str = "deploy-test") -> Any:
    return client.read_deployment_by_name(f"{flow}/{name}")


def _names(client: SyncPrefectClient, flow: str = "deploy-test") -> list[str]:
    found = client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])))
    return sorted(deployment.name for deployment in found)


def test_the_run_form_offers_the_stages_by_name() -> None:
    """A stage that is typed can be misspelt; one that is chosen cannot."""
    from flows.rl_pipeline import rl_pipeline

    schema = parameter_schema(rl_pipeline).model_dump()  # what a deployment has
    assert schema["definitions"]["Stage"]["enum"] == [stage.value for stage in Stage]
    form = {name: json.dumps(schema["properties"][name]) for name in ("refresh", "until")}
    assert all("#/definitions/Stage" in text for text in form.values()), form
    assert schema["properties"]["refresh"]["type"] == "array"
    assert not {"refresh", "until"} & set(schema.get("required", []))


def test_deployment_says_what_the_recipe_says(
    client: SyncPrefectClient, recipes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GSM8K_DIR", "/data/gsm8k")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert deploy_recipes(pipeline, retraining, recipes=recipes) == ["one", "two"]
    deployment = _read(client, "two")
    assert deployment.description == "What two does."
    assert deployment.parameters == {"recipe": "two", "overrides": {}}
    assert deployment.work_pool_name == POOL
    assert deployment.global_concurrency_limit.limit == 1
    assert deployment.concurrency_options.collision_strategy == "ENQUEUE"
    environment = deployment.job_variables["env"]
    assert environment["GSM8K_DIR"] == "/data/gsm8k"
    assert "WANDB_API_KEY" not in environment, "a secret would be in the server's database"
    assert not deployment.schedules, "a recipe that is not retrained runs by hand only"


def test_evolve_has_a_deployment_that_takes_model_and_recipe(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.evolve import evolve

    monkeypatch.setenv("GSM8K_DIR", "/data/gsm8k")
    assert deploy_evolve(evolve) == "model"
    deploy_evolve(evolve)
    deployment: Any = client.read_deployment_by_name("evolve/model")
    assert deployment.work_pool_name == POOL
    assert deployment.global_concurrency_limit.limit == 1
    assert deployment.job_variables["env"]["GSM8K_DIR"] == "/data/gsm8k"
    fields = deployment.parameter_openapi_schema["properties"]
    assert {"model", "recipe", "split", "overrides"} <= set(fields)
    assert not deployment.schedules


def test_a_recipe_that_is_retrained_has_its_cron_in_its_time_zone(
    client: SyncPrefectClient, retrained: Path
) -> None:
    assert deploy_recipes(pipeline, retraining, recipes=retrained) == ["one", "three", "two"]
    assert _names(client, "retrain-test") == ["three"]
    (schedule,) = _read(client, "three", "retrain-test").schedules
    assert (schedule.schedule.cron, schedule.schedule.timezone) == ("5 4 * * *", "Europe/Berlin")
    assert schedule.active
    assert schedule.slug == RETRAIN_SLUG


def test_the_server_makes_the_runs_of_a_cron(client: SyncPrefectClient, retrained: Path) -> None:
    """Its scheduler failed in the background, and nothing was ever retrained."""
    deploy_recipes(pipeline, retraining, recipes=retrained)
    deployment = _read(client, "three", "retrain-test")
    only = DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id]))
    deadline = time.monotonic() + 300
    while not (runs := client.read_flow_runs(deployment_filter=only)):
        assert time.monotonic() < deadline, "no run was scheduled"
        time.sleep(0.5)
    assert {run.state_name for run in runs} == {"Scheduled"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_firing_is_made_up_for_where_deploying_again_removes_those_that_are_due(
    client: SyncPrefectClient, retrained: Path
) -> None:
    """As `make up` does with those that came due after `make down`: a weekly one lost its week."""
    three = yaml.safe_load((retrained / "three.yaml").read_text())
    often = {**three, "retrain": {**three["retrain"], "cron": "* * * * *"}}
    (retrained / "three.yaml").write_text(yaml.safe_dump(often))
    deploy_recipes(pipeline, retraining, recipes=retrained)
    only = DeploymentFilter(id=DeploymentFilterId(any_=[_read(client, "three", "retrain-test").id]))

    def due() -> list[FlowRun]:
        runs = client.read_flow_runs(deployment_filter=only)
        now = datetime.now(UTC)
        return [run for run in runs if run.expected_start_time and run.expected_start_time < now]

    deadline = time.monotonic() + 300
    while not due():
        assert time.monotonic() < deadline, "no run came due"
        time.sleep(1)
    found = set()
    for _ in range(2):  # the one that makes up for it waits, and another is not made
        deploy_recipes(pipeline, retraining, recipes=retrained)
        (made,) = [run for run in due() if not run.auto_scheduled]
        assert CATCH_UP in made.tags
        found.add(made.id)
    (id_,) = found
    cancel_waiting(client, "the worker ended")
    assert client.read_flow_run(id_).state_name in ("Scheduled", "Late")


@pytest.mark.parametrize("day", [datetime(2026, 3, 29), datetime(2026, 10, 25)])
def test_a_cron_runs_once_in_the_night_in_which_clocks_change(day: datetime) -> None:
    """02:30 is not there in March, and twice there in October. The scheduler asks every now and
    then for the next time, and makes one run of each."""
    schedule = CronSchedule(cron="30 2 * * *", timezone="Europe/Berlin")
    noon = day.replace(hour=12, tzinfo=UTC)
    asked = [noon - timedelta(minutes=10 * i) for i in range(6 * 24)]
    times = {asyncio.run(schedule.get_dates(n=1, start=at))[0].astimezone(UTC) for at in asked}
    night = [at for at in times if noon - timedelta(days=1) < at < noon]
    assert len(night) == 1, sorted(night)


@pytest.mark.slow
def test_deploying_again_keeps_a_schedule_switched_off_and_drops_what_is_gone(
    client: SyncPrefectClient, retrained: Path
) -> None:
    deploy_recipes(pipeline, retraining, recipes=retrained)
    deployment = _read(client, "three", "retrain-test")
    client.request(
        "PATCH",
        "/deployments/{id}/schedules/{schedule_id}",
        path_params={"id": deployment.id, "schedule_id": deployment.schedules[0].id},
        json=DeploymentScheduleUpdate(active=False).model_dump(mode="json", exclude_unset=True),
    )
    (retrained / "two.yaml").unlink()
    assert deploy_recipes(pipeline, retraining, recipes=retrained) == ["one", "three"]
    (schedule,) = _read(client, "three", "retrain-test").schedules
    assert not schedule.active, "deploying again switched on what the user had switched off"
    assert _names(client) == ["one", "three"], "that of a removed recipe would fail when run"
    three = yaml.safe_load((retrained / "three.yaml").read_text())
    (retrained / "three.yaml").write_text(yaml.safe_dump({**three, "retrain": {}}))
    deploy_recipes(pipeline, retraining, recipes=retrained)
    assert not _read(client, "three", "retrain-test").schedules, "its cron is gone"
    (retrained / "three.yaml").write_text(yaml.safe_dump({**three, "retrain": None}))
    deploy_recipes(pipeline, retraining, recipes=retrained)
    assert _names(client, "retrain-test") == []


def test_a_cron_that_is_none_is_refused_in_a_sentence(
    client: SyncPrefectClient, retrained: Path
) -> None:
    three = yaml.safe_load((retrained / "three.yaml").read_text())
    three["retrain"]["cron"] = "every monday"
    (retrained / "three.yaml").write_text(yaml.safe_dump(three))
    with pytest.raises(UserError, match=r"retrain\.cron = 'every monday': wrong number of fields"):
        deploy_recipes(pipeline, retraining, recipes=retrained)


def test_pool_limits_runs_over_all_deployments(client: SyncPrefectClient) -> None:
    assert client.read_work_pool(POOL).concurrency_limit == 1
    ensure_pool(client, runs=3)
    ensure_pool(client)  # as `deploy` and a study bring everything up
    pool = client.read_work_pool(POOL)
    assert (pool.type, pool.concurrency_limit) == ("process", 3)


def test_automation_exists_once_and_follows_its_file(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    """Two of them would act twice; a stale one would close live runs."""
    ensure_automations(client)
    (name,) = [entry["name"] for entry in yaml.safe_load(AUTOMATIONS.read_text())]
    (first,) = client.read_automations_by_name(name)
    ensure_automations(client)
    assert [a.id for a in client.read_automations_by_name(name)] == [first.id]
    changed = tmp_path / "automations.yaml"
    changed.write_text(AUTOMATIONS.read_text().replace("within: 120", "within: 240"))
    ensure_automations(client, changed)
    (second,) = client.read_automations_by_name(name)
    assert second.id != first.id
    assert second.trigger.model_dump()["within"].total_seconds() == 240


def test_a_recipe_of_ones_own_stays_when_those_of_the_project_are_deployed_again(
    client: SyncPrefectClient, recipes: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    base = yaml.safe_load((RECIPES / "_quickstart.yaml").read_text())
    (folder / "mine.yaml").write_text(yaml.safe_dump({**base, "name": "mine-grpo"}))
    assert deploy_own(pipeline, folder / "mine.yaml") == "mine-grpo"
    deploy_recipes(pipeline, retraining, recipes=recipes)
    deployment = _read(client, "mine-grpo")
    assert deployment.parameters["recipe"] == str(folder / "mine.yaml")
    assert deployment.job_variables["env"]["PYTHONPATH"].split(":")[0] == str(folder)
    (folder / "mine.yaml").write_text(yaml.safe_dump({**base, "name": "quickstart"}))
    with pytest.raises(UserError, match="name = 'quickstart' is that of a deployment of this"):
        deploy_own(pipeline, folder / "mine.yaml")


def test_runs_of_ones_own_recipe_find_a_server_that_moved(
    client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their schedule outlives its port: only the worker knows the one of the day."""
    base = yaml.safe_load((RECIPES / "_quickstart.yaml").read_text())
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**base, "name": "moved"}))
    monkeypatch.setattr(local, "up", lambda: local.Site(tmp_path, 4200))
    assert main(["deploy", str(tmp_path / "mine.yaml")]) == 0
    stored = _read(client, "moved", "rl-pipeline").job_variables["env"]
    assert not [name for name in stored if name.startswith("PREFECT_")]


def test_a_second_recipe_of_a_name_does_not_replace_the_first(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    """A schedule of the first would train the second's model from then on."""
    base = {**yaml.safe_load((RECIPES / "_quickstart.yaml").read_text()), "name": "shared-name"}
    first, second = tmp_path / "first" / "mine.yaml", tmp_path / "second" / "mine.yaml"
    for file in (first, second):
        file.parent.mkdir()
        file.write_text(yaml.safe_dump(base))
    deploy_own(pipeline, first, retraining)
    with pytest.raises(UserError, match="name = 'shared-name' is that of the deployment") as error:
        deploy_own(pipeline, second, retraining)
    assert f"of recipe '{first}'; give it another name" in str(error.value)
    assert _read(client, "shared-name").parameters["recipe"] == str(first)
    first.write_text(yaml.safe_dump({**base, "description": "New."}))
    deploy_own(pipeline, first, retraining)
    assert _read(client, "shared-name").description == "New.", "its own file may change"
    client.delete_deployment(_read(client, "shared-name").id)
    deploy_own(pipeline, second, retraining)
    assert _read(client, "shared-name").parameters["recipe"] == str(second)


def test_a_pool_keeps_its_kind(client: SyncPrefectClient) -> None:
    with pytest.raises(UserError, match=r"is of type process, and not kubernetes: .*delete"):
        ensure_pool(client, runs=1, kind="kubernetes", template={})
