"""A learning study: recipes x seeds through the deployed flow, then its tables and one figure.

Runs go to this machine's server and worker one after the other. Finished training is read from the
store, so that the same command continues an interrupted study.
"""

import argparse
import io
import json
import re
from collections.abc import Sequence
from contextlib import chdir, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from flows import local
from flows.commands.arguments import add_overrides
from flows.outcomes import (
    COLUMNS,
    NO_ROOM,
    UNKNOWN,
    RunOutcome,
    Variant,
    averages,
    shortfalls,
    tables,
    variants,
    write_results,
)
from flows.output import add_format, print_rows, progress_on_stderr
from flows.paths import RECIPES, ROOT
from flows.summary_table import figures_table
from rlcore.recipes.load import load_recipe
from rlcore.results.folders import run_directory
from rlcore.results.metrics import stage_metrics
from rlcore.results.provenance import commit_of, machine_of
from rlcore.results.run import Run
from rlcore.results.summary import proxy_and_truth
from schemas.errors import UserError
from schemas.judges import may_verify
from schemas.names import RECORDS
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from rlcore.report.draw import Panel

PANELS = 4  # to a row of the figure
LAST_LINES = 15  # of a failed run's log
RL_SECONDS = "timing_s/step"
VALIDATION = "val/accuracy"
TRAINING = "critic/accuracy"
_SECTIONS = re.compile(r"[\w.]+\.(?=\w+\.\w+=)")  # of a key: kl.coef=0.1 is left


def add_study(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipes", nargs="+", metavar="RECIPE", help="name, or path of a file")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--png", type=Path, help="draw accuracy over iterations here")
    add_overrides(
        parser,
        "for every run, e.g. -o evaluate.samples=1 -o 'evaluate.pass_k=[1]'; several values are"
        " swept, each with each of other keys: -o rl.rollout.samples=8,16; a value that contains a"
        " comma is written in brackets or quotes",
    )
    parser.add_argument(
        "--sampled",
        action="store_true",
        help="use the accuracy of samples, which RL trains, instead of that of greedy answers",
    )
    parser.add_argument(
        "--min-rise",
        type=float,
        metavar="SHARE",
        help=f"fail unless RL adds this much held-out accuracy in every run, e.g. 0.2, or ends at"
        f" {NO_ROOM} or more",
    )
    parser.add_argument(
        "--min-accuracy",
        type=float,
        metavar="SHARE",
        help="fail unless every run ends at this held-out accuracy, e.g. 0.95",
    )
    parser.add_argument(
        "--min-spread",
        type=float,
        metavar="SHARE",
        help="fail unless the best and the worst recipe, means over the seeds, end this far apart"
        " and further than twice the largest standard deviation of a recipe, e.g. 0.15",
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="write figures, spread, hardware and commit as Markdown, e.g. runs/results.md",
    )
    add_format(parser, others="a row per run, progress on stderr")
    parser.set_defaults(command=study)


def study(options: argparse.Namespace) -> int:
    """Run the study; return 0 when every run completed and met the demands.

    Raises UserError, before anything is trained, for a recipe that cannot be studied or started.
    """
    from rlcore.plan.preconditions import check_start

    swept = variants(options.override)
    # A file's own, as it is looked for in another folder below.
    places = [str(Path(n).resolve()) if Path(n).is_file() else n for n in options.recipes]
    given = [
        load_recipe(place, variant.overrides, directory=RECIPES)
        for variant in swept
        for place in places
    ]
    for checked in given:
        _check(checked, sampled=options.sampled)
    if options.results is not None and not options.results.parent.is_dir():
        raise UserError(f"--results {options.results}: there is no folder for it; make it first")
    with chdir(ROOT):  # in which the worker runs them
        for checked in given:
            check_start(checked)
    names = list(dict.fromkeys(checked.name for checked in given))
    with nullcontext() if options.format == "table" else progress_on_stderr():
        outcomes = train_all(options, swept, names)
    if outcomes is None:
        return 130
    if options.format != "table":
        rows = [{name: getattr(outcome, name) for name in COLUMNS} for outcome in outcomes]
        print_rows(rows, COLUMNS, options.format)
    elif outcomes:
        print_tables(outcomes, sampled=options.sampled)
    with nullcontext() if options.format == "table" else progress_on_stderr():
        return _judge(options, outcomes, runs=len(given) * len(options.seeds))


def _judge(options: argparse.Namespace, outcomes: list[RunOutcome], *, runs: int) -> int:
    """Draw and print what is asked beside the figures; return 0 if nothing failed or was missed."""
    if outcomes and options.png:
        draw(outcomes, options.png, sampled=options.sampled)
        print(f"Picture: {options.png}")
    if outcomes and options.results:
        write_results(outcomes, options.results, sampled=options.sampled)
        print(f"Results: {options.results}")
    failed = runs - len(outcomes)
    if failed:
        print(f"{failed} of {runs} runs failed; run the same command again to continue")
    missed = shortfalls(
        outcomes,
        min_rise=options.min_rise,
        min_accuracy=options.min_accuracy,
        min_spread=options.min_spread,
    )
    print(*missed, sep="\n", end="\n" if missed else "")
    return 1 if failed or missed else 0


def train_all(
    options: argparse.Namespace, swept: Sequence[Variant], names: Sequence[str]
) -> list[RunOutcome] | None:
    """Run every recipe with all swept values and every seed; return what completed, or None when
    interrupted."""
    site = _with_own(local.up(), [Path(name) for name in options.recipes if Path(name).suffix])
    runs = [(seed, name, one) for seed in options.seeds for name in names for one in swept]
    outcomes: list[RunOutcome] = []
    for number, (seed, recipe, variant) in enumerate(runs, start=1):
        what = f"{recipe} {variant.values}".rstrip()
        print(f"{number}/{len(runs)} {what} seed {seed}", flush=True)
        given = {**variant.overrides, "seed": seed}
        try:
            outcome = _run(site, recipe, given, sampled=options.sampled)
        except KeyboardInterrupt:
            print("Stopped; the current run continues. The same command continues the study.")
            return None
        if outcome is not None:
            print(f"    held-out accuracy {outcome.before:.3f} -> {outcome.rl:.3f}", flush=True)
            outcomes.append(replace(outcome, values=variant.values))
    order = [variant.values for variant in swept]
    return sorted(outcomes, key=lambda o: (names.index(o.recipe), order.index(o.values), o.seed))


def _with_own(site: local.Site, paths: list[Path]) -> local.Site:
    """Deploy the recipe files ``paths``; return ``site`` with their deployments."""
    from flows.deploy import deploy_own
    from flows.rl_pipeline import rl_pipeline

    own = [deploy_own(rl_pipeline, path) for path in paths]
    return replace(site, deployments=(*site.deployments, *own))


def _check(recipe: Recipe, *, sampled: bool) -> None:
    """Raise UserError unless the recipe's runs give a rise in accuracy."""
    if sampled and recipe.evaluate.samples == 1:
        raise UserError(
            f"recipe '{recipe.name}' evaluates with evaluate.samples = 1, greedy answers only, and"
            " --sampled needs samples; give it more, or leave --sampled out"
        )
    if not recipe.rl.enabled:
        raise UserError(
            f"recipe '{recipe.name}' has rl.enabled = false, and a study is of what RL adds; set it"
            " to true, or name another recipe"
        )
    if not any(may_verify(function, recipe.judges) for function in recipe.reward.functions):
        raise UserError(
            f"recipe '{recipe.name}': reward.functions holds no function that checks correctness,"
            " so there is no accuracy to study; add one of weight 0"
        )
    before = _before(recipe)
    if before not in recipe.evaluate.checkpoints:
        raise UserError(
            f"recipe '{recipe.name}' does not evaluate {before!r}, from which RL starts, so there"
            f" is no rise to study; add {before} to evaluate.checkpoints"
        )


def _before(recipe: Recipe) -> str:
    return ("base", *recipe.policies)[-2]


def _run(
    site: local.Site, recipe: str, overrides: dict[str, Any], *, sampled: bool
) -> RunOutcome | None:
    """Run a deployment to its end; None, with the reason printed, when it fails."""
    from prefect.client.orchestration import get_client
    from rich.console import Console

    from flows.follow import create_run

    flow_run = create_run(recipe, overrides, known=site.deployments)
    print(f"    {site.ui_url}/runs/flow-run/{flow_run.id}", flush=True)
    output = io.StringIO()
    if local.follow_run(site, flow_run.id, Console(file=output, width=120)) == 0:
        directory = ROOT / run_directory(flow_run.parameters["recipe"], str(flow_run.id))
        return read_outcome(directory, sampled=sampled)
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run.id).state
    if state is None or not state.is_final():
        raise KeyboardInterrupt  # handled by ``follow``: the run continues, the study ends
    print("\n".join(f"    {line}" for line in output.getvalue().splitlines()[-LAST_LINES:]))
    return None


def read_outcome(directory: Path, *, sampled: bool = False) -> RunOutcome:
    """Return the result of the run in folder ``directory``, from its summary and its store."""
    from rlcore.diagnostics.measures import learns_from_a_model

    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    run = Run.open(str(directory))
    recipe, store, policy = run.recipe, run.store, summary["artifacts"]["rl"].rsplit("/", 1)[1]
    made = store.peek("policy", policy)
    # Those of a run that continued a shorter one are below that one's key.
    records = policy if made is None else made.metadata.get(RECORDS, policy)
    metrics = stage_metrics(store, records, last=recipe.rl.iterations)
    watched = pl.col("name") == (TRAINING if sampled else VALIDATION)
    curve = metrics.filter(watched).select("step", "value").drop_nulls().sort("step")
    accuracy = summary["sampled_accuracy" if sampled else "accuracy"]
    before, rl = accuracy[_before(recipe)], accuracy["rl"]
    if before is None or rl is None:
        raise UserError(
            f"recipe '{recipe.name}' has no held-out accuracy: its reward checks no correctness;"
            " let a reward function return 'acc' besides 'score'"
        )
    return RunOutcome(
        recipe=recipe.name,
        seed=recipe.seed,
        before=before,
        rl=rl,
        iterations=summary["iterations"],
        seconds=float(metrics.filter(pl.col("name") == RL_SECONDS)["value"].to_numpy().sum()),
        curve=list(curve.iter_rows()),
        proxy=proxy_and_truth(metrics) if learns_from_a_model(recipe) else None,
        machine=(made and machine_of(made)) or UNKNOWN,
        commit=(made and commit_of(store, made)) or UNKNOWN,
    )


def print_tables(outcomes: Sequence[RunOutcome], *, sampled: bool = False) -> None:
    """Print a row per recipe, and a row per run."""
    from rich.console import Console

    kind = "accuracy of samples" if sampled else "greedy accuracy"
    console = Console(soft_wrap=True)
    for title, rows in tables(outcomes).items():
        heads, *cells = (row[:-2] for row in rows)  # without hardware and commit
        console.print(figures_table(heads, cells, f"Held-out {kind}: {title.lower()}"))


def draw(outcomes: Sequence[RunOutcome], path: Path, *, sampled: bool = False) -> None:
    """Write ``panels`` as one PNG, ``PANELS`` to a row."""
    from rlcore.report.draw import picture

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture(panels(outcomes, sampled=sampled), columns=PANELS))


def panels(outcomes: Sequence[RunOutcome], *, sampled: bool = False) -> "list[Panel]":
    """Return a panel per recipe with a line per seed over the iterations, and one more where a
    reward model is maximised."""
    from rlcore.report.draw import Line, Panel, gap_panel

    accuracy, gaps = [], []
    for average in averages(outcomes):
        recipe, runs = average.recipe, [o for o in outcomes if o.name == average.recipe]
        title = _SECTIONS.sub("", recipe)  # a whole key would not fit the panel's width
        panel = Panel(
            title,
            [Line(f"seed {o.seed}", o.curve, colour) for colour, o in enumerate(runs)],
            note=f"held-out {average.before:.2f} to {average.rl:.2f}",
            y_label="accuracy of samples" if sampled else "validation accuracy",
            limits=(0.0, 1.03),
            legend=True,
        )
        accuracy.append(panel)
        by_seed = {f"seed {o.seed}": o.proxy for o in runs if o.proxy is not None}
        if by_seed:
            gaps.append(gap_panel(title, by_seed))
    return [*accuracy, *gaps]
