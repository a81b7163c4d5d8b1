"""No library that a run uses reports to its makers; what a user has set stays."""

import os
from collections.abc import MutableMapping

OFF = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "WANDB_ERROR_REPORTING": "false",
}


def switch_off(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that the libraries read; call it before they are imported."""
    for name, value in OFF.items():
        environment.setdefault(name, value)
