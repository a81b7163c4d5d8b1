"""What retraining tells of champions (``tasks.runtime.alerts``)."""

from collections.abc import Mapping
from typing import Any

from rlcore.webhook import Level
from tasks.runtime.alerts import alert

PROMOTED = "rl-pipeline.champion.promoted"
HELD = "rl-pipeline.champion.held"
ROLLED_BACK = "rl-pipeline.champion.rolled-back"
FAILED = "rl-pipeline.retrain.failed"
_LEVELS = {
    PROMOTED: Level.INFO,
    HELD: Level.INFO,
    ROLLED_BACK: Level.WARNING,
    FAILED: Level.ERROR,
}


def tell(event: str, name: str, text: str, fields: Mapping[str, Any]) -> None:
    """Tell ``event`` about the champion, or the retraining, of ``name``, as ``text``."""
    alert(event, _LEVELS[event], f"champion.{name}", f"{name}: {text}", fields)
