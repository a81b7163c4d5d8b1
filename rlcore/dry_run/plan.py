"""What ``--dry-run`` prints of a run that may start here."""

from rlcore.diagnostics.watch import Diagnostics
from rlcore.dry_run.judges import judge_lines
from rlcore.dry_run.stages import Rates, cpu_rates, gpu_rates, stage_estimates
from rlcore.dry_run.states import InStore, state_lines
from rlcore.dry_run.text import (
    assumption_lines,
    attention_line,
    batch_lines,
    engine_lines,
    memory_lines,
    sampler_line,
    stage_lines,
    stop_lines,
    store_lines,
)
from rlcore.preflight.machine import Fit
from rlcore.preflight.room import gib
from rlcore.preflight.start import Start
from rlcore.recipe_text import write_yaml
from schemas.recipe import Recipe


def render_plan(start: Start, in_store: InStore = InStore()) -> str:  # noqa: B008 - frozen
    """Return the plan of a run that may start as plain text: recipe, batches, memory, time and
    disk, assumptions, and what the diagnostics report on the recipe alone.

    ``in_store``: what a run would not make again; nothing where nobody has looked.
    """
    fit, data = start.fit, start.fit.data
    recipe, states = fit.recipe, in_store.states
    written = write_yaml(recipe.model_dump(mode="json"))
    prepared = [] if start.rehearsal is None else list(start.rehearsal.lines())
    rates = gpu_rates() if fit.device == "cuda" else cpu_rates(recipe.hardware.learner.threads)
    sections = {
        **({"What would run": state_lines(states)} if states else {}),
        "Resolved recipe": written.rstrip().split("\n"),
        **({"Data": prepared} if prepared else {}),
        "Batch arithmetic": batch_lines(recipe, data, fit.batches),
        **({"Judges": judges} if (judges := [*judge_lines(recipe, data)]) else {}),
        "End of an answer": stop_lines(recipe, start.stops),
        "Memory": _memory_lines(fit),
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
