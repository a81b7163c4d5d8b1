"""A run is found by the names that a person has at hand."""

import pytest
from prefect import flow

from flows.flow_runs import find_run, whole
from schemas.errors import UserError

pytestmark = pytest.mark.timeout(120)


def test_a_run_is_found_by_folder_id_and_as_the_latest(prefect_server: str) -> None:
    """`rl-pipeline watch` in another terminal: nobody types 36 digits."""
    for name in ("first", "second"):
        flow(name="rl-pipeline", flow_run_name=name)(lambda: None)()
    run = find_run("latest")
    assert run.name == "second"
    for name in (str(run.id), str(run.id)[:8], f"second-{str(run.id)[:8]}"):
        assert find_run(name).id == run.id
    with pytest.raises(UserError, match=r"no run of the Prefect server match 'gone'; .*second-"):
        find_run("gone")


def test_the_pipeline_of_a_retraining_ends_with_the_retraining(prefect_server: str) -> None:
    """It has no process of its own: a stop that asked it alone would end nothing."""
    pipeline = flow(name="rl-pipeline", flow_run_name="called")(lambda: None)
    flow(name="retrain", flow_run_name="calls")(lambda: pipeline())()
    called = find_run("latest")
    assert called.name == "called"
    assert whole(called).name == "calls"
    assert whole(whole(called)) == whole(called)
