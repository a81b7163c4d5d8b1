"""``rl-pipeline from-verl``: a verl run as a recipe."""

import argparse
import os
from pathlib import Path

from rlcore.verl.translate import render, translate
from schemas.errors import UserError

SCRIPTS = (".sh", ".yaml", ".yml", ".txt", ".log")  # what a verl run is kept in


def add_from_verl(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "command_or_file",
        help="a script (read, never run), what `bash -x` printed of one, Hydra's config.yaml, or a"
        " command line in quotes",
    )
    parser.add_argument("--name", help="name of the recipe (default: trainer.experiment_name)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the recipe there")
    parser.add_argument(
        "--train-rows", type=int, metavar="N", help="training rows, where the files are not here"
    )
    parser.add_argument(
        "--reward", metavar="MODULE:FUNCTION", help="reward of data that verl has one built in for"
    )
    parser.set_defaults(command=_from_verl)


def _from_verl(options: argparse.Namespace) -> int:
    source = Path(options.command_or_file)
    is_file = os.path.isfile(source)  # Path.is_file() raises where a command is too long a name
    if not is_file and source.suffix in SCRIPTS and not set(options.command_or_file) & set(" ="):
        raise UserError(f"there is no file '{source}'; give its path, or the command in quotes")
    if options.out is not None and not options.out.parent.is_dir():
        raise UserError(f"--out {options.out}: there is no folder '{options.out.parent}'; make it")
    translation = translate(
        source.read_text(encoding="utf-8") if is_file else options.command_or_file,
        name=options.name,
        train_rows=options.train_rows,
        reward=options.reward,
    )
    text = render(translation)
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text, encoding="utf-8")
        print(f"wrote {options.out}; next: {translation.next_command(str(options.out))}")
    return 0
