"""Preferences that a stage samples from the policy it begins with, and has ranked."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from prefect.logging import get_run_logger

from rlcore.cluster.progress import activity
from rlcore.engines.pool import load_model_directory
from rlcore.models.stop_tokens import stops_of
from rlcore.models.tokenizer import load_tokenizer
from rlcore.rewards.pairs import Comparison, Pair, compare
from rlcore.rollout.trajectories import Trajectory
from rlcore.supervised.preferences import Preferences, sample_preferences
from rlcore.supervised.ranking import Ranking, by_judge, by_score, by_verdict
from schemas.names import is_model, ranking_term
from schemas.reward_model import VERIFIER, SampledPreferences
from tasks.runtime.stage_run import StageRun


def sampled_preferences(run: StageRun, section: SampledPreferences, policy: Path) -> Preferences:
    """Return the responses of the model of the directory ``policy``, with their ranks; ``run``
    knows its engine. Raises as ``sample_preferences``, and as what ranks them."""
    engines, tokenizer = run.workers.engines(policy), load_tokenizer(policy)
    load_model_directory(engines, policy)
    return sample_preferences(
        section,
        run.store.table(run.parents["dataset"], "prompts"),
        seed=run.recipe.seed,
        engines=engines,
        tokenizer=tokenizer,
        stop_ids=stops_of(policy, tokenizer).ids,
        rank=partial(_rank, run, section, policy),
    )


def _rank(
    run: StageRun,
    section: SampledPreferences,
    policy: Path,
    trajectories: Sequence[Trajectory],
) -> Ranking:
    recipe, by = run.recipe, section.ranked_by
    judge = section.judge
    if judge is not None and recipe.judges[judge].is_pairwise:

        def compared(pairs: Sequence[Pair]) -> list[Comparison]:
            with activity(f"ranking by judge {judge}"):
                log = get_run_logger().info
                return compare(recipe, judge, pairs, rows="comparisons of responses", log=log)

        return by_judge(trajectories, judge, compared)
    scorer = run.workers.rule_rewards(brought_for=policy if is_model(by) else None).score
    if by == VERIFIER:
        return by_verdict(trajectories, scorer, recipe.reward)
    return by_score(trajectories, scorer, recipe.reward, ranking_term(by))
