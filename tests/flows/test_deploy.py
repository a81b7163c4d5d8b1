"""A deployment is a recipe: the YAML file says it all, and deploying again changes nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleUpdate
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.utilities.callables import parameter_schema

from flows.deploy import (
    AUTOMATIONS,
    POOL,
    RETRAIN_SLUG,
    deploy_evolve,
    deploy_own,
    deploy_recipes,
    ensure_automations,
    ensure_pool,
)
from flows.places import RECIPES
from schemas.errors import UserError
from schemas.stages import Stage

pytestmark = pytest.mark.timeout(120)


@flow(name="deploy-test")
def pipeline(recipe: str = "one", overrides: dict[str, Any] | None = None) -> None:
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


def _read(client: SyncPrefectClient, name: str) -> Any:
    return client.read_deployment_by_name(f"deploy-test/{name}")


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
    assert deploy_recipes(pipeline, recipes=recipes, environment={"A": "1"}) == ["one", "two"]
    deployment = _read(client, "two")
    assert deployment.description == "What two does."
    assert deployment.parameters == {"recipe": "two", "overrides": {}}
    assert deployment.work_pool_name == POOL
    assert deployment.global_concurrency_limit.limit == 1
    assert deployment.concurrency_options.collision_strategy == "ENQUEUE"
    environment = deployment.job_variables["env"]
    assert environment["A"] == "1"
    assert environment["GSM8K_DIR"] == "/data/gsm8k"
    assert "WANDB_API_KEY" not in environment, "a secret would be in the server's database"
    (schedule,) = deployment.schedules
    assert not schedule.active, "a fresh checkout would retrain by itself"


def test_evolve_has_a_deployment_that_takes_model_and_recipe(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.evolve import evolve

    monkeypatch.setenv("GSM8K_DIR", "/data/gsm8k")
    assert deploy_evolve(evolve, environment={"A": "1"}) == "model"
    deploy_evolve(evolve, environment={"A": "1"})
    deployment: Any = client.read_deployment_by_name("evolve/model")
    assert deployment.work_pool_name == POOL
    assert deployment.global_concurrency_limit.limit == 1
    environment = deployment.job_variables["env"]
    assert (environment["A"], environment["GSM8K_DIR"]) == ("1", "/data/gsm8k")
    fields = deployment.parameter_openapi_schema["properties"]
    assert {"model", "recipe", "split", "overrides"} <= set(fields)
    assert not deployment.schedules


def test_deploying_again_keeps_the_schedule_switch_and_drops_gone_recipes(
    client: SyncPrefectClient, recipes: Path
) -> None:
    deploy_recipes(pipeline, recipes=recipes)
    (schedule,) = _read(client, "one").schedules
    client.request(
        "PATCH",
        "/deployments/{id}/schedules/{schedule_id}",
        path_params={"id": _read(client, "one").id, "schedule_id": schedule.id},
        json=DeploymentScheduleUpdate(active=True).model_dump(mode="json", exclude_unset=True),
    )
    (recipes / "two.yaml").unlink()
    assert deploy_recipes(pipeline, recipes=recipes) == ["one"]
    (schedule,) = _read(client, "one").schedules
    assert schedule.active, "deploying again switched the user's schedule off"
    assert schedule.slug == RETRAIN_SLUG
    (left,) = client.read_deployments(
        flow_filter=FlowFilter(name=FlowFilterName(any_=["deploy-test"]))
    )
    assert left.name == "one", "the deployment of a removed recipe would fail when run"


def test_pool_limits_runs_over_all_deployments(client: SyncPrefectClient) -> None:
    assert client.read_work_pool(POOL).concurrency_limit == 1
    ensure_pool(client, runs=3)
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
    deploy_recipes(pipeline, recipes=recipes)
    deployment = _read(client, "mine-grpo")
    assert deployment.parameters["recipe"] == str(folder / "mine.yaml")
    assert deployment.job_variables["env"]["PYTHONPATH"].split(":")[0] == str(folder)
    (folder / "mine.yaml").write_text(yaml.safe_dump({**base, "name": "quickstart"}))
    with pytest.raises(UserError, match="name = 'quickstart' is that of a deployment of this"):
        deploy_own(pipeline, folder / "mine.yaml")
