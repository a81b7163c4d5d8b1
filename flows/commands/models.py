"""``rl-pipeline models``: write a real model that a package ships, for recipes without a hub."""

import argparse
import os
from pathlib import Path
from typing import Any

from rlcore.models.smollm2 import FOLDER


def add_models(commands: Any) -> None:
    parser = commands.add_parser(
        "models", help="write a real model that needs no hub: SmolLM2-135M-Instruct"
    )
    parser.add_argument("name", choices=["smollm2"])
    parser.add_argument(
        "directory", nargs="?", type=Path, default=FOLDER, help="where (default: %(default)s)"
    )
    parser.set_defaults(command=_models)


def _models(options: argparse.Namespace) -> int:
    """Write the directory, once. Raises UserError where the package is not installed."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of the libraries that read the file
    from rlcore.models.smollm2 import write_smollm2

    new = write_smollm2(options.directory)
    print(f"{options.directory} {'holds' if new else 'held already'} SmolLM2-135M-Instruct")
    return 0
