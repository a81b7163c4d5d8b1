"""Stage 7: base model and the policies made of it on the held-out test split, greedy and
sampled."""

from time import perf_counter

import polars as pl
from prefect.logging import get_run_logger

from rlcore.cluster.progress import activity
from rlcore.engines.pool import load_model_directory
from rlcore.evaluation.evaluate import evaluate as evaluate_checkpoint
from rlcore.evaluation.evaluate import section_of
from rlcore.evaluation.win_rate import with_win_rates
from rlcore.models.stop_tokens import stops_of
from rlcore.models.tokenizer import load_tokenizer
from rlcore.results.provenance import ENGINE
from rlcore.rollout.episodes import episodes_of
from schemas.artifacts import ArtifactRef
from schemas.names import BASE_MODEL, REWARD_MODEL
from schemas.stages import Stage
from tasks.runtime.caching import StageRun, cached_stage
from tasks.runtime.stage_run import sampling


@cached_stage(Stage.EVALUATE)
def evaluate(run: StageRun) -> ArtifactRef:
    """Evaluate every checkpoint among the parents; the result holds figures and completions."""
    recipe, store = run.recipe, run.store
    prompts = store.table(run.parents["dataset"], "prompts")
    checkpoints = {
        name: run.model(parent)
        for name, parent in (("base", BASE_MODEL), *((stage, stage) for stage in recipe.policies))
        if name in recipe.evaluate.checkpoints and parent in run.parents
    }
    first = next(iter(checkpoints.values()))
    tokenizer = load_tokenizer(first)
    trained = store.manifest(run.parents["rl"]).metadata if "rl" in run.parents else {}
    run = sampling(run, first, recorded=trained.get(ENGINE))
    engines = run.workers.engines(first)
    reward_model = run.model(REWARD_MODEL) if REWARD_MODEL in run.parents else None
    rewards = run.workers.rewards(first, reward_model)
    episodes = episodes_of(recipe, engines, run.workers.environments(), tokenizer)
    results, completions = [], []
    began = perf_counter()
    for name, directory in checkpoints.items():
        load_model_directory(engines, directory)
        with activity(f"evaluation of {name}"):
            figures, drawn = evaluate_checkpoint(
                prompts,
                checkpoint=name,
                section=section_of(name, checkpoints, recipe.evaluate),
                seed=recipe.seed,
                engines=engines,
                tokenizer=tokenizer,
                stop_ids=stops_of(first, tokenizer).ids,
                scorer=rewards.score,
                reward=recipe.reward,
                episodes=episodes,
            )
        results.append(figures)
        completions.append(drawn)
        shown = figures.filter(pl.col("metric") == "greedy/acc")
        for row in shown.iter_rows(named=True):
            get_run_logger().info(
                f"{name}: {row['data_source']}/{row['subset']} greedy accuracy {row['value']:.3f}"
                f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
            )
    tokens = sum(int(drawn["num_tokens"].sum()) for drawn in completions)
    tables = {"eval_results": pl.concat(results), "completions": pl.concat(completions)}
    return run.put(
        tables=with_win_rates(tables, recipe, log=get_run_logger().info),
        metadata={"tokens_per_s": tokens / (perf_counter() - began)},
    )
