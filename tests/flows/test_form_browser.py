"""The run form of a deployment in headless Chromium: stages are chosen, and a run is given them."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client

from flows.deploy import deploy_recipes, ensure_pool
from flows.retrain import retrain
from flows.rl_pipeline import rl_pipeline
from schemas.stages import Stage
from tests.browser import opened
from tests.conftest import HOME

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
FIELD = "[...document.querySelectorAll('.schema-form-property')].find(f => f.innerText.startsWith"
BUTTON = "[...document.querySelectorAll('button')].find(b => b.innerText.trim() === 'Submit')"


@pytest.fixture
def client(prefect_server: str) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def deployment(client: SyncPrefectClient, tmp_path: Path) -> Iterator[UUID]:
    """A deployment of the pipeline; its runs wait, as there is no worker."""
    text = yaml.safe_dump({"name": "form", "description": "Is filled in."})
    (tmp_path / "form.yaml").write_text(text)
    ensure_pool(client, runs=1)
    deploy_recipes(rl_pipeline, retrain, recipes=tmp_path)
    made = client.read_deployment_by_name("rl-pipeline/form")
    yield made.id
    client.delete_deployment(made.id)


def chosen(field: str, values: list[str]) -> str:
    """Return the JavaScript that chooses ``values`` in the list of ``field``, as a user would."""
    return f"""(() => {{
        const list = {FIELD}('{field}')).querySelector('select');
        for (const option of list.options) option.selected = {values}.includes(option.text.trim());
        list.dispatchEvent(new Event('change', {{bubbles: true}}));
        return [...list.options].map(option => option.text.trim());
    }})()"""


def test_stages_are_chosen_and_the_run_gets_them(
    deployment: UUID, client: SyncPrefectClient, prefect_server: str, tmp_path: Path
) -> None:
    """A stage that is typed can be misspelt, and the run fails once the worker has it."""
    base = f"http://127.0.0.1:{urlsplit(prefect_server).port or 0}"
    with opened(tmp_path / "profile") as browser:
        browser.sign_in(base, (HOME / "password").read_text())
        browser.open(f"{base}/deployments/deployment/{deployment}/run")
        browser.wait(f"{FIELD}('until')) && {FIELD}('refresh'))?.querySelector('select') && true")
        assert "stages that are made again" in browser.ask(f"{FIELD}('refresh')).innerText")
        assert "the stage after which the run ends" in browser.ask(f"{FIELD}('until')).innerText")
        stages = [stage.value for stage in Stage]
        offered = browser.ask(chosen("refresh", ["evaluate", "export"]))
        assert [one for one in offered if one in stages] == stages
        browser.ask(
            f"[...{FIELD}('until')).querySelectorAll('button')]"
            ".find(button => button.innerText.trim() === 'Stage').click()"
        )
        browser.wait(f"{FIELD}('until')).querySelector('select') !== null")
        browser.ask(chosen("until", ["export"]))
        browser.picture(tmp_path / "form.png", height=1800)
        browser.ask(f"{BUTTON}.click()")
        browser.wait("!location.pathname.endsWith('/run')")
    (run,) = [run for run in client.read_flow_runs() if run.deployment_id == deployment]
    assert run.parameters["refresh"] == ["evaluate", "export"]
    assert run.parameters["until"] == "export"
    client.delete_flow_run(run.id)


def test_the_other_interface_has_both_too(
    deployment: UUID, prefect_server: str, tmp_path: Path
) -> None:
    base = f"http://127.0.0.1:{urlsplit(prefect_server).port or 0}"
    with opened(tmp_path / "profile") as browser:
        browser.sign_in(base, (HOME / "password").read_text())
        browser.open(f"{base}/v2/deployments/deployment/{deployment}/run")
        browser.wait("document.body?.innerText.includes('the stage after which the run ends')")
        text = browser.ask("document.body.innerText")
        assert "refresh (Optional)" in text
        assert "until (Optional)" in text
        assert "stages that are made again" in text
