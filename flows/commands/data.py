"""``rl-pipeline data``: what SFT and RL will read, before anything is trained."""

import argparse

from flows.commands.arguments import add_overrides, add_recipe, recipe_of
from flows.output import add_format, print_rows, print_wrapped
from rlcore.data.datasheet import COLUMNS, datasheet, figures
from schemas.errors import UserError


def add_data(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "-n", type=int, default=5, metavar="ROWS", help="examples of each kind (default: 5)"
    )
    add_overrides(parser)
    add_format(parser, others="the figures of the datasheet alone")
    parser.set_defaults(command=data)


def data(options: argparse.Namespace) -> int:
    """Print the first demonstrations and prompts with token boundaries and loss mask, then the
    datasheet; as CSV and JSON its figures. Writes nothing into the store."""
    from rlcore.data.preview import example_lines, preview

    if options.n < 0:
        raise UserError(f"-n {options.n} is not a number of rows; give 0 or more")
    shown = preview(recipe_of(options), options.n)
    if options.format != "table":
        print_rows(figures(shown.prepared.summary), COLUMNS, options.format)
        return 0
    for kind, examples in (("demonstration", shown.demonstrations), ("prompt", shown.prompts)):
        for number, example in enumerate(examples, start=1):
            lines = example_lines(example, shown.tokenizer)
            print(f"{kind} {number}:", *lines, "", sep="\n")
    for sheet in datasheet(shown.prepared.summary):
        print_wrapped(sheet.columns, sheet.rows or [("none",)], sheet.title)
    return 0
