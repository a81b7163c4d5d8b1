"""``rl-pipeline evaluate``: any model on the data of a recipe; several side by side, in pairs."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.commands.arguments import add_overrides, add_recipe, add_runs_folder, recipe_of
from flows.commands.compare import of_difference
from flows.output import add_format, print_rows, progress_on_stderr, tell
from rlcore.results.named_artifacts import model_path
from rlcore.results.paired import METRICS, difference, prompt_values
from rlcore.results.run import Run
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.names import REWARD_MODEL
from schemas.recipe import Recipe
from tasks.evaluate_model import CHECKPOINT, Evaluated, evaluate_model, with_model

COLUMNS = (
    *("part", "model", "metric", "data_source", "subset", "value", "low", "high", "prompts"),
    *("higher", "lower", "unmatched_first", "unmatched_this", "text"),
)
FIGURE, DIFFERENCE, KEPT, NOTE = "figure", "difference", "kept", "note"
FAILURES = ("/unscored", "/aborted", "/judge_failed")  # a table shows them where there are any
SPLITS = ("test", "validation", "train")
MODEL = (
    "a Hugging Face directory, a name of the hub, or a run: its export, or its policy where it has"
    " none"
)


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="+",
        metavar="MODEL",
        help=f"{MODEL}; others are compared with the first",
    )
    add_recipe(parser)
    add_split(parser)
    parser.add_argument("--revision", metavar="COMMIT", help="of the models of the hub")
    parser.add_argument(
        "--reward-model",
        metavar="RUN",
        help="whose reward model scores, where the recipe rewards with one",
    )
    add_overrides(parser, "e.g. -o evaluate.samples=1; may be given many times")
    add_runs_folder(parser)
    add_format(parser)
    parser.set_defaults(command=evaluate)


def add_split(parser: argparse.ArgumentParser) -> None:
    """Add ``--split``, the part of a recipe's data that is answered."""
    parser.add_argument(
        "--split", choices=SPLITS, default="test", help="of the recipe's data (default: test)"
    )


def evaluate(options: argparse.Namespace) -> int:
    """Print each model's figures, and their differences from the first's.

    Raises UserError for a model, a recipe or a run that there is not, before anything starts, and
    for a model that does not fit the recipe's data.
    """
    from rlcore.plan.preconditions import check_evaluation, check_model

    if len(set(options.model)) < len(options.model):
        raise UserError(f"evaluate {' '.join(options.model)}: a model is named twice; leave one")
    recipe = recipe_of(options)
    scorer = _reward_model(options, recipe)
    check_evaluation(recipe)
    models = [
        with_model(recipe, model_path(name, options.runs), options.revision)
        for name in options.model
    ]
    for one in models[1:]:  # the first is about to be read
        check_model(one.model)
    found: dict[str, Evaluated] = {}
    with progress_on_stderr():
        for name, one in zip(options.model, models, strict=True):
            found[name] = evaluate_model(one, split=options.split, reward_model=scorer, log=tell)
    kept = [_row(KEPT, model, text=one.ref.uri) for model, one in found.items()]
    rows = [*_figures(found), *_differences(found), *kept]
    if options.format != "table":
        print_rows(rows, COLUMNS, options.format)
    else:
        _print(rows, options.model[0])
    return 0


def _reward_model(options: argparse.Namespace, recipe: Recipe) -> ArtifactRef | None:
    """Return the reward model that scores; None where the recipe rewards with none."""
    if not any(function.name == REWARD_MODEL for function in recipe.reward.functions):
        if options.reward_model is not None:
            raise UserError(
                f"--reward-model {options.reward_model}: recipe '{recipe.name}' rewards with no"
                " reward model; leave it out"
            )
        return None
    if options.reward_model is None:
        raise UserError(
            f"recipe '{recipe.name}' rewards with a trained reward model; name the run that has it"
            " (--reward-model RUN), or set reward.functions to functions alone"
        )
    run = Run.open(options.reward_model, options.runs)
    ref = run.result(REWARD_MODEL)
    if ref is None:
        raise UserError(
            f"--reward-model: the run '{run.name}' has no reward model; it has come to"
            f" {', '.join(run.stages)}; name a run of a recipe with the section reward_model"
        )
    return ref


def _row(part: str, model: str, **values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS), "part": part, "model": model, **values}


def _figures(found: dict[str, Evaluated]) -> Iterator[dict[str, Any]]:
    for model, one in found.items():
        for row in one.results.iter_rows(named=True):
            yield _row(FIGURE, model, prompts=row["num_prompts"], **figure_of(row))


def figure_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is printed of a row of the table eval_results, by column."""
    same = {name: row[name] for name in ("metric", "data_source", "subset", "value")}
    return {**same, "low": row["ci_low"], "high": row["ci_high"]}


def worth_showing(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures that a table shows: "all" of one source and subset says nothing new."""
    several = len({(row["data_source"], row["subset"]) for row in figures}) > 2
    return [row for row in figures if several or row["data_source"] != "all"]


def _differences(found: dict[str, Evaluated]) -> Iterator[dict[str, Any]]:
    """Yield the differences of each model from the first, and a note where there can be none."""
    values = {
        model: prompt_values(one.completions, one.results, CHECKPOINT)
        for model, one in found.items()
    }
    (base, first), *others = values.items()
    for model, second in others:
        for metric in METRICS:
            if metric not in first or metric not in second:
                continue
            pair = difference(metric, first[metric], second[metric])
            if pair is None:
                yield _row(NOTE, model, text=f"shares no prompt that has {metric} with {base}")
                continue
            counted = {"metric": metric, "prompts": pair.pairs}
            yield _row(DIFFERENCE, model, **counted, **of_difference(pair))


def _print(rows: Sequence[dict[str, Any]], first: str) -> None:
    figures = worth_showing([row for row in rows if row["part"] == FIGURE])
    shown = [row for row in figures if row["value"] or not row["metric"].endswith(FAILURES)]
    bounds = ("value", "low", "high", "prompts")
    pairs = ("model", "metric", *bounds, "higher", "lower", "unmatched_first", "unmatched_this")
    others = {
        DIFFERENCE: (
            f"Differences from {first}, on the prompts of both, with 95 % intervals",
            pairs,
        ),
        NOTE: ("Notes", ("model", "text")),
        KEPT: ("Kept in the store", ("model", "text")),
    }
    print("Figures, with 95 % intervals:")
    print_rows(shown, ("model", "data_source", "subset", "metric", *bounds), "table")
    for part, (title, columns) in others.items():
        if mine := [row for row in rows if row["part"] == part]:
            print(f"\n{title}:")
            print_rows(mine, columns, "table")
