"""``rl-pipeline export-data``: a run's prepared rows as files that verl and TRL read."""

import argparse
from pathlib import Path
from typing import Any

from rlcore.results.folders import RUNS
from schemas.errors import UserError

FORMS = ("verl", "trl")
DATASET = "prepare_data"


def add_export_data(commands: Any) -> None:
    """Add the subcommand ``export-data`` to a command line's subparsers."""
    parser = commands.add_parser(
        "export-data", help="write a run's prepared rows, without repeated ones, for verl or TRL"
    )
    parser.add_argument("run", metavar="RUN", help="a run's folder or 'latest', also while it goes")
    parser.add_argument("--form", choices=FORMS, required=True, help="whose columns")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="a new folder (default: data-<form> in the run's)"
    )
    parser.add_argument(
        "--runs", type=Path, default=RUNS, metavar="FOLDER", help="of runs (default: %(default)s)"
    )
    parser.set_defaults(command=export_data)


def export_data(options: argparse.Namespace) -> int:
    """Write a Parquet file per split and print how many rows each has.

    Raises UserError where the run has not prepared its data, or the folder is there.
    """
    import pyarrow.parquet as pq

    from rlcore.data.peers import write_rows
    from rlcore.results.run import Run

    run = Run.open(options.run, options.runs)
    ref = run.result(DATASET)
    if ref is None:
        raise UserError(
            f"the run '{run.name}' has not ended the stage {DATASET}; it has come to"
            f" {', '.join(run.stages)}; let it go on"
        )
    prompts, demonstrations = (run.store.table(ref, t) for t in ("prompts", "demonstrations"))
    out = options.out or run.folder / f"data-{options.form}"
    write_rows(prompts, demonstrations, options.form, out)
    for file in sorted(out.glob("*.parquet")):
        print(f"{file}: {pq.ParquetFile(file).metadata.num_rows:,} rows")
    return 0
