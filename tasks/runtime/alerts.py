"""What somebody should know now: an event in Prefect's feed, for people's own automations, and a
post to the webhook of the environment. Neither is the truth, and neither delays or undoes
anything."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.logging import get_logger

from rlcore.diagnostics.watch import Finding
from tasks.runtime.webhook import AlertLevel, post

RUN_FAILED, RUN_CRASHED = "rl-pipeline.run.failed", "rl-pipeline.run.crashed"
FINDING_BEGAN, FINDING_ENDED = "rl-pipeline.finding.began", "rl-pipeline.finding.ended"
_told: set[tuple[str, str]] = set()  # (event, flow run id) of this process


def alert(
    event: str, level: AlertLevel, about: str, text: str, fields: Mapping[str, Any] | None = None
) -> None:
    """Emit ``event`` on ``about`` ("run.<name>", "champion.<name>") and post it as ``text``.

    ``fields``: more to be said of it, as text. What goes wrong is logged.
    """
    shown = {name: str(value) for name, value in (fields or {}).items() if value is not None}
    resource = {
        "prefect.resource.id": f"rl-pipeline.{about}",
        "prefect.resource.name": about.partition(".")[2],
    }
    try:
        emit_event(event=event, resource=resource, payload={"text": text, **shown})
        post(event, level, text, shown)
    except Exception as error:  # noqa: BLE001  an alert must not end what it is about
        get_logger(__name__).warning(f"the alert {event} was not sent: {error}")


def alert_finding(recipe: str, flow_run_id: str, finding: Finding) -> None:
    """Tell that a check of the run ``flow_run_id`` of ``recipe`` began to fail, or is well again.
    One that ends the run is told of as the failure of the run."""
    about, name = f"run.{recipe}", f"{recipe}: {finding.check}"
    fields = {"recipe": recipe, "flow_run": flow_run_id, **asdict(finding)}
    if finding.ended is None:
        text = f"{name}, iteration {finding.began}: {finding.sentence}"
        alert(FINDING_BEGAN, AlertLevel.WARNING, about, text, fields)
    else:
        text = f"{name}, reported at iteration {finding.began}, is over at {finding.ended}"
        alert(FINDING_ENDED, AlertLevel.INFO, about, text, fields)


def alert_end(flow: Any, flow_run: Any, state: State) -> None:
    """Hook: tell that a run failed or crashed, once; one that another flow called is told of there.

    As ``on_crashed`` it runs in the worker's process, so also after a kill -9.
    """
    del flow
    event = RUN_CRASHED if state.is_crashed() else RUN_FAILED
    if flow_run.parent_task_run_id is not None or (event, str(flow_run.id)) in _told:
        return
    _told.add((event, str(flow_run.id)))
    recipe = str(flow_run.parameters.get("recipe", flow_run.name))
    text = f"{recipe} {(state.name or 'ended').lower()}: {state.message or 'no message'}"
    fields = {"recipe": recipe, "flow_run": flow_run.id, "state": state.name}
    alert(event, AlertLevel.ERROR, f"run.{recipe}", text, fields)


PROMOTED = "rl-pipeline.champion.promoted"
HELD = "rl-pipeline.champion.held"
ROLLED_BACK = "rl-pipeline.champion.rolled-back"
FAILED = "rl-pipeline.retrain.failed"
_LEVELS = {
    PROMOTED: AlertLevel.INFO,
    HELD: AlertLevel.INFO,
    ROLLED_BACK: AlertLevel.WARNING,
    FAILED: AlertLevel.ERROR,
}


def tell(event: str, name: str, text: str, fields: Mapping[str, Any]) -> None:
    """Tell ``event`` about the champion, or the retraining, of ``name``, as ``text``."""
    alert(event, _LEVELS[event], f"champion.{name}", f"{name}: {text}", fields)
