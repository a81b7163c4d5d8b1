"""``rl-pipeline reward``: a reward function tried on stored rollouts before a run pays for it."""

import argparse
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import polars as pl

from flows.commands.arguments import add_overrides, add_runs_folder, overrides_of
from flows.output import add_format, print_rows, progress_on_stderr, tell, terminal_width
from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe, parse_override, recipe_names
from rlcore.results.folders import run_folder, run_names
from rlcore.results.run import Run
from schemas.errors import UserError, did_you_mean
from schemas.recipe import Recipe
from schemas.rl import RewardSection

if TYPE_CHECKING:
    from rlcore.plan.reward_trial import RewardRows, Tried

RECORDED = "recorded"
ROWS = 1000
WORST = 5  # rows shown on which two rewards disagree


def add_reward(reward: argparse.ArgumentParser) -> None:
    actions = reward.add_subparsers(required=True, metavar="ACTION")
    parser = actions.add_parser(
        "try", help="score stored rollouts, or demonstrations, and name what is wrong"
    )
    parser.add_argument(
        "function", metavar="NAME", help="as in a recipe: gsm8k, my.py:f, my_package.rewards:f"
    )
    parser.add_argument(
        "source",
        metavar="RUN|RECIPE",
        help="a run's folder or 'latest': its rollouts are scored again; a recipe: answers"
        " of demonstrations, to their own prompts and to others",
    )
    parser.add_argument(
        "--against",
        metavar="NAME",
        help="a second function, or 'recorded': the run's own scores (default for a run)",
    )
    parser.add_argument(
        "-n", type=int, default=ROWS, metavar="ROWS", help="about so many; 0 = all (default: 1000)"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the function"
    )
    parser.add_argument("--batch", action="store_true", help="it is called as f(rows)")
    add_overrides(parser)
    add_runs_folder(parser)
    add_format(parser)
    parser.set_defaults(command=try_reward)


def try_reward(options: argparse.Namespace) -> int:
    """Print what is wrong with the function, the figures of its scores, and the rows on which it
    and the other disagree most; return 1 where a run would end because of it. Writes nothing into
    the store."""
    from rlcore.plan import reward_figures
    from rlcore.plan.reward_trial import same_rows

    if options.n < 0:
        raise UserError(f"-n {options.n} is not a number of rows; give 1 or more, or 0 for all")
    with progress_on_stderr():
        rows, section, tried, against, other = _scored(options)
    pair = None if other is None else same_rows(tried.rows, other)
    sentences = reward_figures.findings(tried, section, pair, against)
    agreement, worst = ([], []) if pair is None else reward_figures.comparison(*pair, WORST)
    found = [*reward_figures.figures(tried), *agreement]
    code = 1 if reward_figures.ends_a_run(tried.rows, section) else 0
    if options.format != "table":
        found += worst
        for number, text in enumerate(sentences, start=1):
            found.append(reward_figures.RewardFigure("finding", str(number), text=text))
        print_rows([asdict(one) for one in found], reward_figures.COLUMNS, options.format)
        return code
    width = terminal_width()
    print(*wrap(f"{options.function} on {rows.described}", width), sep="\n")
    for text in sentences or ["nothing is conspicuous"]:
        print(*wrap(f"- {text}", width, subsequent_indent="  "), sep="\n")
    print()
    shown = [{"part": f.part, "figure": f.name, "value": f.value, "text": f.text} for f in found]
    print_rows(shown, ("part", "figure", "value", "text"), "table")
    if worst:
        print(f"\nRows on which {options.function} and {against} disagree most:")
        titles = {"prompt": "text", "response": "response"}
        titles |= {options.function: "value", against: "other"}
        cells = [{title: getattr(row, name) for title, name in titles.items()} for row in worst]
        print_rows(cells, list(titles), "table")
    return code


def _scored(
    options: argparse.Namespace,
) -> tuple["RewardRows", RewardSection, "Tried", str, pl.DataFrame | None]:
    """Return the rows, the limits they were scored under, what the function said, and the name of
    the other reward with what it said; "" and None where there is none."""
    from rlcore.plan.reward_trial import function_of, recorded, score

    recipe, rows = _rows(options)
    stored = recorded(rows.batches)
    against = options.against or ("" if stored is None else RECORDED)
    if against == RECORDED and stored is None:
        raise UserError(
            f"--against {RECORDED}: no scores are stored of {options.source}; name a function"
        )
    given = dict(parse_override(text) for text in options.option)
    functions = [function_of(recipe, options.function, given, batch=options.batch)]
    if against not in ("", RECORDED):
        functions.append(function_of(recipe, against, {}, batch=False))
    tried, *second = [score(recipe, function, rows.batches, tell) for function in functions]
    return rows, recipe.reward, tried, against, second[0].rows if second else stored


def _rows(options: argparse.Namespace) -> tuple[Recipe, "RewardRows"]:
    """Return the rows to score, and the recipe whose limits hold."""
    from rlcore.plan.reward_trial import sample_rows, stored_rows

    overrides = overrides_of(options)
    most = options.n or None
    if run_folder(options.source, options.runs) is not None:
        run = Run.open(options.source, options.runs, overrides)
        keys = [key for names in run.recorded("rollouts").values() for key in names]
        return run.recipe, stored_rows(run.store, keys, most=most, name=run.name)
    recipes = recipe_names(RECIPES)
    if options.source not in recipes and not Path(options.source).is_file():
        known = [*run_names(options.runs), *recipes]
        raise UserError(
            f"'{options.source}' is neither a run in {options.runs} nor a recipe"
            f"{did_you_mean(options.source, known)}"
        )
    recipe = load_recipe(options.source, overrides, directory=RECIPES)
    return recipe, sample_rows(recipe, most=most)
