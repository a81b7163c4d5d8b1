"""A learning study: recipes x seeds through the deployed flow, then one table and one picture.

Runs go to this machine's server and worker one after the other. What has been trained comes from
the store, so a study that was interrupted is continued by the same command.
"""

import argparse
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.figure import Panel, ProxyPanel, draw
from schemas.errors import UserError

if TYPE_CHECKING:
    import polars as pl

    from flows.local import Site
    from schemas.recipe import Recipe

RECIPES = Path(__file__).parent / "recipes"
LAST_LINES = 15  # of a failed run's log
RL_SECONDS = "timing_s/step"
VALIDATION = "val/accuracy"


@dataclass(frozen=True)
class Outcome:
    """What one run came to. ``sft``, ``rl``: greedy held-out accuracy; ``seconds``: of all RL
    iterations, whenever they were trained. ``proxy``: ``proxy_and_truth``, with a reward model."""

    recipe: str
    seed: int
    sft: float
    rl: float
    iterations: int
    seconds: float
    validation: list[tuple[int, float]]
    proxy: "pl.DataFrame | None" = None

    @property
    def rise(self) -> float:
        """What RL adds to held-out accuracy."""
        return self.rl - self.sft


def add_study(commands: Any) -> None:
    """Add the subcommand ``study`` to a command line's subparsers."""
    parser = commands.add_parser("study", help="train recipes x seeds; a table and a picture")
    parser.add_argument("recipes", nargs="+", metavar="RECIPE", help="name in flows/recipes")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--png", type=Path, help="draw validation accuracy over iterations here")
    parser.add_argument(
        "-o",
        "--override",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="for every run, e.g. -o evaluate.samples=1 -o 'evaluate.pass_k=[1]'",
    )
    parser.add_argument(
        "--min-rise",
        type=float,
        metavar="SHARE",
        help="fail unless RL adds this much held-out accuracy in every run, e.g. 0.2",
    )
    parser.set_defaults(command=study)


def study(options: argparse.Namespace) -> int:
    """Run the study; return 0 when every run ended well and rose as far as asked."""
    from flows.local import up
    from rlcore.recipes import load_recipe, parse_override

    overrides = dict(parse_override(text) for text in options.override)
    for name in options.recipes:
        _check(load_recipe(name, overrides, directory=RECIPES))
    site = up()
    runs = [(recipe, seed) for seed in options.seeds for recipe in options.recipes]
    outcomes: list[Outcome] = []
    for number, (recipe, seed) in enumerate(runs, start=1):
        print(f"{number}/{len(runs)} {recipe} seed {seed}", flush=True)
        try:
            outcome = _run(site, recipe, {**overrides, "seed": seed})
        except KeyboardInterrupt:
            print("Stopped; the run under way goes on. The same command continues the study.")
            return 130
        if outcome is not None:
            print(f"    held-out accuracy {outcome.sft:.3f} -> {outcome.rl:.3f}", flush=True)
            outcomes.append(outcome)
    outcomes.sort(key=lambda outcome: (options.recipes.index(outcome.recipe), outcome.seed))
    if outcomes:
        print_table(outcomes)
    if outcomes and options.png:
        draw(panels(outcomes), options.png)
        print(f"Picture: {options.png}")
    return _verdict(outcomes, len(runs), options.min_rise)


def _check(recipe: "Recipe") -> None:
    """Raise UserError unless the recipe's runs have a rise to study."""
    if not recipe.sft.enabled or not {"sft", "rl"} <= set(recipe.evaluate.checkpoints):
        raise UserError(
            f"recipe '{recipe.name}' does not evaluate both 'sft' and 'rl', so there is no rise to"
            " study; set sft.enabled, and evaluate.checkpoints to [base, sft, rl]"
        )


def _verdict(outcomes: Sequence[Outcome], num_runs: int, min_rise: float | None) -> int:
    failed = num_runs - len(outcomes)
    if failed:
        print(f"{failed} of {num_runs} runs failed; run the same command again to continue")
    low = [o for o in outcomes if min_rise is not None and o.rise < min_rise]
    for outcome in low:
        print(f"{outcome.recipe} seed {outcome.seed} rose by {outcome.rise:.3f}, not {min_rise:g}")
    return 1 if failed or low else 0


def _run(site: "Site", recipe: str, overrides: dict[str, Any]) -> Outcome | None:
    """Run a deployment to its end; None, with the reason printed, when it fails."""
    from prefect.client.orchestration import get_client
    from rich.console import Console

    from flows import services
    from flows.follow import create_run, follow
    from flows.local import ROOT
    from tasks.run import run_directory

    flow_run = create_run(recipe, overrides, known=site.deployments)
    print(f"    {site.ui_url}/runs/flow-run/{flow_run.id}", flush=True)
    worker = services.find(site.home, "worker")
    told = io.StringIO()
    code = follow(
        flow_run.id,
        root=ROOT,
        ui_url=site.ui_url,
        worker_alive=lambda: worker is not None and worker.alive(),
        worker_log=services.log_path(site.home, "worker"),
        console=Console(file=told, width=120),
    )
    if code == 0:
        return read_outcome(ROOT, ROOT / run_directory(recipe, str(flow_run.id)))
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run.id).state
    if state is None or not state.is_final():
        raise KeyboardInterrupt  # taken by ``follow``: the run goes on, the study does not
    print("\n".join(f"    {line}" for line in told.getvalue().splitlines()[-LAST_LINES:]))
    return None


def read_outcome(root: Path, directory: Path) -> Outcome:
    """Return what the run of folder ``directory`` came to, from its summary and its store.

    ``root``: the project, from which a store without a scheme is reached.
    """
    import polars as pl

    from rlcore.diagnostics.measures import learns_from_a_model
    from rlcore.metrics import stage_metrics
    from rlcore.recipes import load_recipe
    from rlcore.store import ArtifactStore
    from rlcore.summary import proxy_and_truth

    summary = json.loads((directory / "summary.json").read_text())
    recipe = load_recipe(str(directory / "recipe.yaml"), directory=directory)
    where = recipe.store if "://" in recipe.store else str(root / recipe.store)
    metrics = stage_metrics(ArtifactStore(where), summary["artifacts"]["rl"].rsplit("/", 1)[1])
    validation = metrics.filter(pl.col("name") == VALIDATION).select("step", "value")
    sft, rl = summary["accuracy"]["sft"], summary["accuracy"]["rl"]
    if sft is None or rl is None:
        raise UserError(
            f"recipe '{recipe.name}' has no held-out accuracy: its reward judges no correctness;"
            " let a reward function return 'acc' beside 'score'"
        )
    return Outcome(
        recipe=recipe.name,
        seed=recipe.seed,
        sft=sft,
        rl=rl,
        iterations=summary["iterations"],
        seconds=float(metrics.filter(pl.col("name") == RL_SECONDS)["value"].to_numpy().sum()),
        validation=list(validation.iter_rows()),
        proxy=proxy_and_truth(metrics) if learns_from_a_model(recipe) else None,
    )


def print_table(outcomes: Sequence[Outcome]) -> None:
    """Print a row per run."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Held-out greedy accuracy", title_justify="left")
    table.add_column("recipe")
    for column in ("seed", "SFT", "RL", "rise", "iterations", "RL seconds"):
        table.add_column(column, justify="right")
    for outcome in outcomes:
        table.add_row(
            outcome.recipe,
            str(outcome.seed),
            f"{outcome.sft:.3f}",
            f"{outcome.rl:.3f}",
            f"{outcome.rise:+.3f}",
            str(outcome.iterations),
            f"{outcome.seconds:.0f}",
        )
    Console(soft_wrap=True).print(table)


def panels(outcomes: Sequence[Outcome]) -> list[Panel | ProxyPanel]:
    """Return a panel per recipe, and two more where a reward model is what is maximised."""
    by_recipe: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_recipe.setdefault(outcome.recipe, []).append(outcome)
    accuracy, proxies = [], []
    for recipe, runs in by_recipe.items():
        sft = sum(o.sft for o in runs) / len(runs)
        rl = sum(o.rl for o in runs) / len(runs)
        lines = {f"seed {o.seed}": o.validation for o in runs}
        accuracy.append(Panel(recipe, f"held-out {sft:.2f} to {rl:.2f}", lines))
        judged = {f"seed {o.seed}": o.proxy for o in runs if o.proxy is not None}
        if judged:
            pairs = [
                (_points(proxy, "proxy"), _points(proxy, "truth")) for proxy in judged.values()
            ]
            proxies += [
                ProxyPanel(f"{recipe}: proxy, truth", pairs),
                Panel(
                    f"{recipe}: gap",
                    "scaled proxy less scaled truth",
                    {label: _points(proxy, "gap") for label, proxy in judged.items()},
                    y_label="gap",
                    limits=(-1.05, 1.05),
                ),
            ]
    return [*accuracy, *proxies]


def _points(curves: "pl.DataFrame", name: str) -> list[tuple[int, float]]:
    return list(curves.select("step", name).iter_rows())
