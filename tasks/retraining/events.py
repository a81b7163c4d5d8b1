"""What retraining tells Prefect's event feed, for people's own automations; never the truth."""

from collections.abc import Mapping
from typing import Any

from prefect.events import emit_event

PROMOTED = "rl-pipeline.champion.promoted"
HELD = "rl-pipeline.champion.held"
ROLLED_BACK = "rl-pipeline.champion.rolled-back"
FAILED = "rl-pipeline.retrain.failed"


def tell(event: str, name: str, payload: Mapping[str, Any]) -> None:
    """Emit ``event`` about the champion, or the retraining, of ``name``; it is delivered beside
    what goes on, and lost where no server answers."""
    emit_event(
        event=event,
        resource={
            "prefect.resource.id": f"rl-pipeline.champion.{name}",
            "prefect.resource.name": name,
        },
        payload=dict(payload),
    )
