"""What ``--dry-run`` prints of a run that may start here: which sections, in which order, and its
warnings."""

from collections.abc import Iterator

from rlcore.diagnostics.watch import Diagnostics
from rlcore.plan.batches import evaluation_tokens, sampled_sequences
from rlcore.plan.data_size import DataSize
from rlcore.plan.machine import Fit
from rlcore.plan.memory import gib
from rlcore.plan.preconditions import StartCheck
from rlcore.plan.stages import Rates, cpu_rates, gpu_rates, rl_seconds, stage_estimates
from rlcore.plan.states import InStore, state_lines
from rlcore.plan.text import (
    assumption_lines,
    attention_line,
    batch_lines,
    engine_lines,
    memory_lines,
    overlap_lines,
    sampler_line,
    stage_lines,
    stop_lines,
    store_lines,
)
from rlcore.recipes.text import write_yaml
from schemas.judges import judges_used
from schemas.recipe import Recipe
from schemas.reward_model import SampledPreferences


def judge_calls(recipe: Recipe, data: DataSize) -> dict[str, int | None]:
    """Return by stage the responses that each judge of the reward is asked about, one call each;
    None where that is not known before the run.

    Equal responses to a prompt are asked about once, answers in the cache are not paid for again,
    and a run may end early, so these are upper bounds. Dynamic sampling counts all rounds that it
    may take; a request that fails and may have been charged for is in none of them.
    """
    rl, filtered = recipe.rl, recipe.rl.algorithm.dynamic_sampling
    rounds = 1 if filtered is None else filtered.max_rounds
    section = recipe.reward_model
    ranked = section.preferences if section is not None else None
    calls: dict[str, int | None] = {}
    if isinstance(ranked, SampledPreferences):
        prompts = ranked.prompts + ranked.validation_prompts
        calls["reward_model"] = prompts * ranked.max_responses
    if rl.enabled:
        calls["rl"] = rl.iterations * sampled_sequences(recipe) * rounds if rounds > 0 else None
        validated = min(rl.validation.prompts, data.validation or rl.validation.prompts)
        calls["validation"] = (rl.iterations // rl.validation.every + 1) * validated
    calls["evaluate"] = None
    if data.test is not None:
        _, completions = evaluation_tokens(recipe, data)
        calls["evaluate"] = len(recipe.evaluate.checkpoints) * completions
    return {stage: count for stage, count in calls.items() if count != 0}


def judge_lines(recipe: Recipe, data: DataSize) -> Iterator[str]:
    """Yield a line per judge: calls by stage and in all against the ceiling, and a warning where it
    may be reached."""
    calls = judge_calls(recipe, data)
    known = sum(count for count in calls.values() if count is not None)
    open_ends = [stage for stage, count in calls.items() if count is None]
    parts = ", ".join(
        f"{stage} {'unknown' if count is None else f'{count:,}'}" for stage, count in calls.items()
    )
    most = " and those of ".join([f"{known:,} calls", *open_ends])
    for name, judge in judges_used(recipe.judges, recipe.reward.functions).items():
        yield f"judge {name}: at most {most} ({parts}); max_calls = {judge.max_calls:,}"
        if known > judge.max_calls:
            yield (
                f"WARNING: judges.{name}.max_calls = {judge.max_calls:,} is less than that; a run"
                " that reaches it stops, and continues when it is raised"
            )


def render_plan(start: StartCheck, in_store: InStore = InStore()) -> str:  # noqa: B008 - frozen
    """Return the plan of a run that may start as plain text: recipe, batches, memory, time and
    disk, assumptions, and what the diagnostics report on the recipe alone.

    ``in_store``: what a run would not make again; nothing where nobody has looked.
    """
    fit, data = start.fit, start.fit.data
    recipe, states = fit.recipe, in_store.states
    written = write_yaml(recipe.model_dump(mode="json"))
    prepared = [] if start.rehearsal is None else list(start.rehearsal.lines())
    rates = gpu_rates() if fit.device == "cuda" else cpu_rates(recipe.hardware.learner.threads)
    overlap = {}
    if recipe.rl.enabled:
        seconds = rl_seconds(fit, fit.shape, rates) if fit.shape else None
        overlap = {"Overlap": overlap_lines(recipe, seconds)}
    sections = {
        **({"What would run": state_lines(states)} if states else {}),
        "Resolved recipe": written.rstrip().split("\n"),
        **({"Data": prepared} if prepared else {}),
        "Batch arithmetic": batch_lines(recipe, data, fit.batches),
        **({"Judges": judges} if (judges := [*judge_lines(recipe, data)]) else {}),
        **overlap,
        "End of an answer": stop_lines(recipe, start.stops),
        "Memory": _memory_lines(fit),
        **({"Hosts": [*start.hosts]} if start.hosts else {}),
        "Time and disk": _stage_lines(fit, rates, in_store),
        "Assumptions": assumption_lines(rates),
    }
    if start.sandbox is not None:
        sections["Sandbox"] = [f"reward code runs programs at level {start.sandbox}"]
    if warnings := [*start.doubts, *recipe_warnings(recipe)]:
        sections["Warnings"] = [f"WARNING: {warning}" for warning in warnings]
    text = [f"Plan of recipe '{recipe.name}'"]
    for title, lines in sections.items():
        text += ["", title, *(f"  {line}".rstrip() for line in lines)]
    return "\n".join(text) + "\n"


def recipe_warnings(recipe: Recipe) -> list[str]:
    """Return the warnings that the run will log when it starts, one sentence each."""
    warnings: list[str] = []
    Diagnostics(recipe, log=warnings.append)
    return warnings


def _memory_lines(fit: Fit) -> list[str]:
    if fit.shape is None or fit.memory is None:
        unknown = f"model: {fit.shape_note}; memory, time and disk are left out"
        return [unknown, sampler_line(fit.recipe, fit.device, None)]
    lines = memory_lines(fit.recipe, fit.shape, fit.memory, fit.device)
    lines.append(sampler_line(fit.recipe, fit.device, fit.shape))
    lines += engine_lines(fit.recipe, fit.memory.engine, fit.memory.kv_tokens, fit.device)
    lines.append(attention_line(fit.attention))
    lines.append(f"all workers, host memory: {gib(fit.host_bytes)} of {gib(fit.machine.host)}")
    if fit.machine.gpus:
        sizes = ", ".join(gib(size) for size in fit.machine.gpus)
        lines.append(f"GPUs visible here: {sizes}")
    elif fit.device == "cuda":
        lines.append("no GPU is visible here: whether the run fits one was not checked")
    elif fit.recipe.hardware.device == "auto":
        lines.append("hardware.device = 'auto' means cpu here, as no GPU is visible")
    if fit.host_bytes > fit.machine.host:
        lines.append(
            "WARNING: more than this machine has; lower hardware.learner.micro_batch_tokens,"
            " hardware.rollout.engines or hardware.rollout.kv_cache_gib"
        )
    return lines


def _stage_lines(fit: Fit, rates: Rates, in_store: InStore) -> list[str]:
    if fit.shape is None:
        return [fit.shape_note, *store_lines(in_store)]
    free = fit.machine.disk_free
    room = "free space of a remote store unknown" if free is None else f"{gib(free)} free"
    stages = stage_estimates(fit, fit.shape, rates)
    return stage_lines(stages, fit.recipe.store, room, in_store)
