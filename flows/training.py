"""Training from Python: ``await train_with_grpo(...)`` and its sisters, ``train_with_dpo`` and
``train_with_kto`` on preferences among them.

    from flows.training import GEPOConfig, train_with_gepo

    config = GEPOConfig(group_size=8, learning_rate=1e-6)
    model, tokenizer, metrics = await train_with_gepo(
        model_name="Qwen/Qwen2.5-0.5B-Instruct",
        reward_fn=lambda prompt, response: float("72" in response),
        train_prompts=["What is 8 times 9?", "What is 6 times 12?"],
        config=config,
    )
    print(metrics["accuracy"][-1])

The pipeline's own loop runs in this process, without Prefect, Ray or vLLM; each ``train_with_*``
has a blocking variant ``train_with_*_sync``, which also works where an event loop runs (notebooks).
Rewards are called on the event loop of the caller, one after the other, or side by side where they
are coroutines; training continues in a thread, so the loop stays responsive. Cancelling (Ctrl-C)
ends the run after the iteration, or the step on preferences, under way. With an ``output_dir`` the
same call continues where one that was cancelled or killed stopped, and one that ended returns at
once what it came to.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rlcore.api.configs import (
    DAPOConfig,
    GEPOConfig,
    GRPOConfig,
    GSPOConfig,
    PPOConfig,
    ReMaxConfig,
    RLOOConfig,
    TrainingConfig,
    VAPOConfig,
)
from rlcore.api.preference import DPOConfig, KTOConfig, PreferenceConfig, train_preferences
from rlcore.api.prompts import MATH_INSTRUCTION, MATH_REWARD, Prompt, math_prompts
from rlcore.api.scorers import FunctionScorers
from rlcore.api.session import Job, Trained, train
from schemas.errors import UserError
from schemas.recipe import Recipe
from tasks.run_page.tracking import Tracker

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=TrainingConfig)
P = ParamSpec("P")
T = TypeVar("T")
OnMetrics = Callable[[int, Mapping[str, float]], None]


def _trainer(config_type: type[C]):  # its type is that of the function that it returns
    name = f"train_with_{config_type.preset}"

    async def train_with(
        model_name: str,
        reward_fn: Callable[[str, str], Any],
        train_prompts: Sequence[Prompt],
        config: C | None = None,
        verifier_fn: Callable[[str, str], Any] | None = None,
        output_dir: str | None = None,
        use_wandb: bool = False,
        wandb_project: str | None = None,
        on_metrics: OnMetrics | None = None,
        resume: bool = True,
    ) -> Trained:
        """Train ``model_name`` on ``train_prompts`` and return (model, tokenizer, metrics).

        Args:
            model_name: a Hugging Face directory or hub name.
            reward_fn: (prompt, response) -> number, dict with ``score``, or None for what cannot be
                scored; may be a coroutine function. A row on which it raises is marked and left out
                of learning, never scored 0; above ``config.max_error_fraction`` the run stops
                (``max_timeout_fraction`` where the clock ended them).
            train_prompts: texts, lists of messages, or dicts with ``prompt``; the tokenizer's chat
                template is applied where it has one. The reward sees the messages' text.
            config: of this algorithm; None: its defaults.
            verifier_fn: (prompt, response) -> correct; None: reward > ``config.correct_threshold``.
            output_dir: keeps model, recipe, store and checkpoints; the same call continues them.
            use_wandb: live curves; offline without WANDB_API_KEY, and never a reason to fail.
            wandb_project: default: that of the recipes.
            on_metrics: gets each iteration (from 1) and its metrics, in the training thread.
            resume: False discards what an earlier call left in ``output_dir`` and starts again.

        Raises UserError for what cannot work, and where ``output_dir`` holds another call.
        """
        chosen = config_type() if config is None else config
        if not isinstance(chosen, config_type):
            raise UserError(
                f"{name} takes a {config_type.__name__} and config is a {type(chosen).__name__};"
                f" use train_with_{chosen.preset}"
            )
        scorers = FunctionScorers(
            reward_fn,
            verifier_fn,
            threshold=chosen.correct_threshold,
            timeout_s=chosen.reward_timeout_s,
            loop=asyncio.get_running_loop(),
        )
        job = _job(name, chosen, model_name, train_prompts, output_dir, resume)
        job = replace(
            job,
            scorers=scorers,
            functions=[{"name": "python:reward_fn"}],
            sources={"reward_fn": reward_fn, "verifier_fn": verifier_fn},
            tracking=_tracking(use_wandb, wandb_project),
        )
        return await _on_rewards(job, on_metrics)

    train_with.__name__ = train_with.__qualname__ = name
    return train_with


async def train_with_dpo(
    model_name: str,
    preferences: Sequence[Mapping[str, Any]],
    config: DPOConfig | None = None,
    output_dir: str | None = None,
) -> Trained:
    """Train ``model_name`` on ``preferences`` and return (model, tokenizer, metrics).

    ``preferences``: rows of ``prompt, chosen, rejected`` as texts or messages, or of any other form
    that the recipe's section ``preference`` reads. ``output_dir`` keeps model and checkpoints; the
    same call continues them. ``metrics``: a list per curve, by TRL's names, and ``eval_`` those of
    the tenth of prompts that is held out. Raises UserError for what cannot work.
    """
    return await _on_preferences(DPOConfig, model_name, preferences, config, output_dir)


async def train_with_kto(
    model_name: str,
    preferences: Sequence[Mapping[str, Any]],
    config: KTOConfig | None = None,
    output_dir: str | None = None,
) -> Trained:
    """``train_with_dpo`` on single responses: rows of ``prompt, completion, label``."""
    return await _on_preferences(KTOConfig, model_name, preferences, config, output_dir)


async def _on_preferences(
    config_type: type[PreferenceConfig],
    model_name: str,
    preferences: Sequence[Mapping[str, Any]],
    config: PreferenceConfig | None,
    output_dir: str | None,
) -> Trained:
    chosen = config_type() if config is None else config
    if not isinstance(chosen, config_type):
        raise UserError(
            f"train_with_{config_type.algorithm} takes a {config_type.__name__} and config is a"
            f" {type(chosen).__name__}; give one of those"
        )
    return await _in_thread(
        lambda check: train_preferences(model_name, preferences, chosen, output_dir, check)
    )


async def train_reasoning_with_dapo(
    model_name: str,
    math_problems: Sequence[Mapping[str, Any]],
    output_dir: str | None = None,
    *,
    instruction: str = MATH_INSTRUCTION,
    use_wandb: bool = False,
    wandb_project: str | None = None,
    on_metrics: OnMetrics | None = None,
    resume: bool = True,
    **overrides: Any,
) -> Trained:
    """Train with DAPO on ``{"problem": ..., "answer": ...}`` rows; right is +1 and wrong -1.

    Answers are compared by value (the reward ``math``; what is too large to compare is
    wrong), in a process that is killed when a row takes longer than ``reward_timeout_s`` (10 s).
    ``instruction`` follows each problem. ``overrides`` are fields of DAPOConfig. ``output_dir``,
    ``resume``: as in ``train_with_dapo``. Returns (model, tokenizer, metrics). Raises UserError for
    a problem without an answer.
    """
    config = DAPOConfig(**{"reward_timeout_s": 10.0, **overrides})
    prompts = math_prompts(math_problems, instruction)
    name = train_reasoning_with_dapo.__name__
    job = _job(name, config, model_name, prompts, output_dir, resume)
    job = replace(
        job,
        functions=[MATH_REWARD],
        reward_offset=-1.0,
        tracking=_tracking(use_wandb, wandb_project),
    )
    return await _on_rewards(job, on_metrics)


def _job(
    call: str,
    config: TrainingConfig,
    model_name: str,
    prompts: Sequence[Prompt],
    output_dir: str | None,
    resume: bool,
) -> Job:
    directory = _agreed(config, "output_dir", output_dir)
    name = _agreed(config, "model_name", model_name)
    if not isinstance(name, str) or not name:
        raise UserError(f"model_name = {name!r} is no model; give a directory or a hub name")
    return Job(
        call=call,
        config=config,
        model_name=name,
        prompts=prompts,
        output_dir=None if directory is None else Path(directory),
        resume=resume,
    )


def _tracking(use_wandb: bool, project: str | None) -> dict[str, Any]:
    return {"wandb": use_wandb, **({"project": project} if project else {})}


def _agreed(config: TrainingConfig, name: str, given: str | None) -> str | None:
    """Return an argument that may be in the config as well, once they do not contradict."""
    configured = {"output_dir": config.output_dir, "model_name": config.model_name}[name]
    if given is not None and configured is not None and str(given) != configured:
        raise UserError(
            f"{name} = {given!r} and {type(config).__name__}.{name} = {configured!r} differ; give"
            " one of them"
        )
    return configured if given is None else str(given)


class _Cancelled(Exception):
    """The caller no longer waits."""


async def _on_rewards(job: Job, on_metrics: OnMetrics | None) -> Trained:
    def run(check: Callable[[], None]) -> Trained:
        with ExitStack() as stack:
            trackers: list[Tracker] = []

            def on_start(recipe: Recipe, run_id: str) -> None:
                tracking = Tracker.open(
                    recipe,
                    job.output_dir or Path.cwd(),
                    run_id=run_id,
                    name=recipe.name,
                    warn=logger.warning,
                )
                trackers.append(stack.enter_context(tracking))

            def report(iteration: int, metrics: Mapping[str, float]) -> None:
                trackers[0].log(metrics, step=iteration, stage="rl")
                if on_metrics is not None:
                    on_metrics(iteration, metrics)
                check()

            return train(replace(job, on_start=on_start, on_metrics=report))

    return await _in_thread(run)


async def _in_thread(run: Callable[[Callable[[], None]], Trained]) -> Trained:
    """Train in a thread; the loop under way serves the rewards meanwhile. ``run`` is given what
    ends it, by an exception, once nobody waits for it."""
    cancelled = threading.Event()

    def check() -> None:
        if cancelled.is_set():
            raise _Cancelled

    training = asyncio.get_running_loop().run_in_executor(None, run, check)
    try:
        return await asyncio.shield(training)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([training])
        training.exception()  # retrieved: no caller is left to report it to
        raise


def _blocking(function: Callable[P, Coroutine[Any, Any, T]], name: str) -> Callable[P, T]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(function(*args, **kwargs))
        return _on_another_loop(lambda: function(*args, **kwargs))

    call.__name__ = call.__qualname__ = f"{name}_sync"
    return call


def _on_another_loop(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine where a loop runs already, which cannot be entered again: in a thread.

    Whatever ends the wait cancels it: an interrupt (a notebook's stop button), a test's limit.
    """
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None, "asyncio.run made one"
        begun.set_result((asyncio.get_running_loop(), task))
        return await start()

    with ThreadPoolExecutor(max_workers=1) as pool:
        outcome = pool.submit(lambda: asyncio.run(main()))
        try:
            return outcome.result()
        except BaseException:
            if not outcome.done():
                loop, task = begun.result()
                loop.call_soon_threadsafe(task.cancel)
            raise


train_with_grpo = _trainer(GRPOConfig)
train_with_ppo = _trainer(PPOConfig)
train_with_dapo = _trainer(DAPOConfig)
train_with_rloo = _trainer(RLOOConfig)
train_with_gspo = _trainer(GSPOConfig)
train_with_gepo = _trainer(GEPOConfig)
train_with_vapo = _trainer(VAPOConfig)
train_with_remax = _trainer(ReMaxConfig)

train_with_grpo_sync = _blocking(train_with_grpo, "train_with_grpo")
train_with_ppo_sync = _blocking(train_with_ppo, "train_with_ppo")
train_with_dapo_sync = _blocking(train_with_dapo, "train_with_dapo")
train_with_rloo_sync = _blocking(train_with_rloo, "train_with_rloo")
train_with_gspo_sync = _blocking(train_with_gspo, "train_with_gspo")
train_with_gepo_sync = _blocking(train_with_gepo, "train_with_gepo")
train_with_vapo_sync = _blocking(train_with_vapo, "train_with_vapo")
train_with_remax_sync = _blocking(train_with_remax, "train_with_remax")
train_with_dpo_sync = _blocking(train_with_dpo, "train_with_dpo")
train_with_kto_sync = _blocking(train_with_kto, "train_with_kto")
train_reasoning_with_dapo_sync = _blocking(train_reasoning_with_dapo, "train_reasoning_with_dapo")
