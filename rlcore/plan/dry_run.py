"""What ``--dry-run`` prints of a run that may start here: batches, memory, disk, and choices."""

from collections.abc import Iterator, Mapping

from rlcore.diagnostics.watch import Diagnostics
from rlcore.engines.registry import choose
from rlcore.models.shape import ModelShape
from rlcore.models.stop_tokens import Stops
from rlcore.plan.batches import BatchPlan, BatchPlans, evaluation_tokens, sampled_sequences
from rlcore.plan.data_size import DataSize
from rlcore.plan.machine import Fit
from rlcore.plan.memory import LearnerMemory, gib
from rlcore.plan.preconditions import StartCheck
from rlcore.plan.states import InStore, state_lines
from schemas.hardware import AUTO, LearnerHardware
from schemas.judges import judges_used
from schemas.recipe import Recipe


def render_plan(start: StartCheck, in_store: InStore = InStore()) -> str:  # noqa: B008 - frozen
    """Return the plan of a run that may start as plain text: batches, memory, disk, and what the
    diagnostics report on the recipe alone.

    ``in_store``: what a run would not make again; nothing where nobody has looked.
    """
    fit, data = start.fit, start.fit.data
    recipe, sandbox = fit.recipe, start.sandbox
    sections = {
        "What would run": state_lines(in_store.states),
        "Data": start.rehearsal.lines() if start.rehearsal else (),
        "Batch arithmetic": batch_lines(recipe, data, fit.batches),
        "Judges": _judge_lines(recipe, data),
        "Overlap": _overlap_lines(recipe) if recipe.rl.enabled else (),
        "End of an answer": _stop_lines(recipe, start.stops),
        "Memory": _memory_lines(fit),
        "Hosts": start.hosts,
        "Disk": disk_lines(fit.disk, recipe.store, fit.machine.disk_free, in_store),
        "Sandbox": [f"reward code runs programs at level {sandbox}"] if sandbox else (),
        "Warnings": [f"WARNING: {text}" for text in (*start.doubts, *recipe_warnings(recipe))],
    }
    plan = [f"Plan of recipe '{recipe.name}'"]
    for title, lines in sections.items():
        if indented := [f"  {line}".rstrip() for line in lines]:
            plan += ["", title, *indented]
    return "\n".join(plan) + "\n"


def recipe_warnings(recipe: Recipe) -> list[str]:
    """Return the warnings that the run will log when it starts, one sentence each."""
    warnings: list[str] = []
    Diagnostics(recipe, log=warnings.append)
    return warnings


def judge_calls(recipe: Recipe, data: DataSize) -> dict[str, int | None]:
    """Return by stage the responses that each judge of the reward is asked about, one call each;
    None where that is not known before the run.

    Equal responses to a prompt are asked about once, answers in the cache are not paid for again,
    and a run may end early, so these are upper bounds. Dynamic sampling counts all rounds that it
    may take; a request that fails and may have been charged for is in none of them.
    """
    rl, filtered = recipe.rl, recipe.rl.algorithm.dynamic_sampling
    rounds = 1 if filtered is None else filtered.max_rounds
    calls: dict[str, int | None] = {
        path.partition(".")[0]: section.responses
        for path, section in recipe.sampled_preferences.items()
        if f"{path}.ranked_by" not in recipe.comparing
    }
    if rl.enabled:
        calls["rl"] = rl.iterations * sampled_sequences(recipe) * rounds if rounds > 0 else None
        validated = min(rl.validation.prompts, data.validation or rl.validation.prompts)
        calls["validation"] = (rl.iterations // rl.validation.every + 1) * validated
    calls["evaluate"] = None
    if data.test is not None:
        _, completions = evaluation_tokens(recipe, data)
        calls["evaluate"] = len(recipe.evaluate.checkpoints) * completions
    return {stage: count for stage, count in calls.items() if count != 0}


def _judge_lines(recipe: Recipe, data: DataSize) -> Iterator[str]:
    """Yield a line per judge: calls by stage and in all against the ceiling, and a warning where it
    may be reached."""
    scoring = judges_used(recipe.judges, recipe.reward.functions)
    asked = {name: judge_calls(recipe, data) for name in scoring}
    asked |= {name: pair_calls(recipe, data, name) for name in recipe.comparing.values()}
    for name, calls in asked.items():
        judge = recipe.judges[name]
        known = sum(count for count in calls.values() if count is not None)
        open_ends = [stage for stage, count in calls.items() if count is None]
        parts = ", ".join(f"{stage} {count:,}" for stage, count in calls.items() if count)
        most = " and those of ".join([f"{known:,} calls ({parts})", *open_ends])
        yield f"judge {name}: at most {most}; max_calls = {judge.max_calls:,}"
        if known > judge.max_calls:
            yield (
                f"WARNING: judges.{name}.max_calls = {judge.max_calls:,} is less than that; a run"
                " that reaches it stops, and continues when it is raised"
            )


def pair_calls(recipe: Recipe, data: DataSize, judge: str) -> dict[str, int | None]:
    """Return by stage the calls that compare responses, as ``judge_calls``: two for each pair."""
    calls: dict[str, int | None] = {
        path.partition(".")[0]: section.responses * (section.max_responses - 1)
        for path, section in recipe.sampled_preferences.items()
        if recipe.comparing.get(f"{path}.ranked_by") == judge
    }
    section, test = recipe.evaluate.win_rate, None
    if section is not None and section.judge == judge:
        if data.test is not None:
            test = 2 * sum(min(n, recipe.evaluate.max_prompts or n) for n in data.test)
        there = [n for n in recipe.evaluate.checkpoints if n == "base" or n in recipe.policies]
        calls["evaluate"] = None if test is None else len(section.compared(there)) * test
        if recipe.retrain is not None and recipe.retrain.compares:
            calls["gate"] = test
    return calls


def batch_lines(recipe: Recipe, data: DataSize, batches: BatchPlans) -> list[str]:
    """Return the arithmetic of each stage, from prompts to optimizer steps."""
    sft, rl = batches.sft, batches.rl
    lines = [
        f"data: {_count(data.train)} training prompts,"
        f" {_count(None if data.test is None else sum(data.test))} test prompts,"
        f" {_count(data.demonstrations)} demonstrations, before any is rejected"
    ]
    lines += ["sft: off"] if sft is None else _sft_lines(recipe, sft)
    lines += _preference_lines(recipe, batches.preference)
    lines += _reward_model_lines(recipe, batches.reward_model)
    lines += ["rl: off"] if rl is None else _rl_lines(recipe, data, rl)
    if data.test is not None:
        tokens, completions = evaluation_tokens(recipe, data)
        per_prompt = 1 + (recipe.evaluate.samples if recipe.evaluate.samples > 1 else 0)
        lines.append(
            f"evaluate: {len(recipe.evaluate.checkpoints)} checkpoints x"
            f" {completions // per_prompt:,} prompts x {per_prompt} completions"
            f" ({'greedy' if per_prompt == 1 else 'one greedy, the rest sampled'}) -> at most"
            f" {tokens:,} sampled tokens per checkpoint"
        )
    return lines


def _reward_model_lines(recipe: Recipe, batch: BatchPlan | None) -> list[str]:
    """Return how preferences become optimizer steps of the reward model; nothing without one."""
    section = recipe.reward_model
    if section is None or batch is None:
        return []
    source = section.preferences
    if source.kind == "samples":
        whence = (
            f"{source.prompts:,} prompts x {source.min_responses} to {source.max_responses} samples"
            f" of the policy (and {source.validation_prompts:,} held-out prompts)"
        )
    else:
        known = batch.sequences_per_round
        whence = "a file of unknown length" if known is None else f"{known:,} responses of a file"
    steps = (
        "an unknown number of" if batch.total_steps is None else f"at most {batch.total_steps:,}"
    )
    base = "" if section.base is None else f", made of {section.base}"
    return [
        f"reward model{base}: {whence} -> all pairs of a prompt in one of"
        f" {section.batch_prompts:,} batch elements x {section.epochs} epoch(s) -> {steps}"
        f" optimizer steps of at most {batch.sequences_per_step:,} responses, {batch.longest:,}"
        " tokens each"
    ]


def _sft_lines(recipe: Recipe, sft: BatchPlan) -> list[str]:
    cap = (
        "" if recipe.sft.max_steps is None else f", capped at {recipe.sft.max_steps:,} by max_steps"
    )
    last = f" (the last of {sft.last_sequences:,})" if sft.last_sequences else ""
    return [
        f"sft: {_count(sft.sequences_per_round)} demonstrations in batches of"
        f" {sft.sequences_per_step:,} -> {_count(sft.steps_per_round)} optimizer steps{last} per"
        f" epoch x {sft.rounds:,} epoch(s){cap} -> {_count(sft.total_steps)} optimizer steps",
        _micro_batch_line("sft", recipe, sft),
    ]


def _preference_lines(recipe: Recipe, batch: BatchPlan | None) -> list[str]:
    section = recipe.preference
    if section is None or batch is None:
        return []
    beside = f", {section.loss}" if section.algorithm == "dpo" else ""
    what = "prompts" if section.algorithm == "dpo" else "responses"
    return [
        f"preference ({section.algorithm}{beside}, beta {section.beta:g}):"
        f" {_count(batch.sequences_per_round)} responses of a file in batches of"
        f" {section.batch_size:,} {what} x {batch.rounds:,} epoch(s) ->"
        f" {_count(batch.total_steps)} optimizer steps",
        _micro_batch_line("preference", recipe, batch),
    ]


def _rl_lines(recipe: Recipe, data: DataSize, rl: BatchPlan) -> list[str]:
    rollout, update = recipe.rl.rollout, recipe.rl.update
    sequences = rollout.prompts * rollout.samples
    sampled = sequences * recipe.max_turns * rollout.max_new_tokens
    tokens = sequences * rl.longest
    passes = " learnt from" if recipe.rl.algorithm.dynamic_sampling else ""
    if not passes and data.train:
        share = rl.rounds * rollout.prompts / data.train
        passes = f" = {share:.1f} passes over the training prompts"
    return [
        f"rl, per iteration: {rollout.prompts:,} prompts x {rollout.samples} samples ->"
        f" {sequences:,} sequences -> {update.mini_batches} mini-batch(es) of"
        f" {rl.sequences_per_step:,} x {update.epochs} epoch(s) -> {rl.steps_per_round} optimizer"
        f" step(s); at most {_longest(recipe)} = {rl.longest:,} tokens a sequence ->"
        f" {tokens:,} tokens, {sampled:,} of them sampled",
        f"rl, in all: {rl.rounds:,} iterations -> {rl.rounds * rollout.prompts:,} prompts{passes}"
        f", {rl.rounds * sequences:,} sequences, {rl.total_steps:,}"
        f" optimizer steps, at most {rl.rounds * tokens:,} tokens",
        _micro_batch_line("rl", recipe, rl),
        *_algorithm_lines(recipe, rl),
    ]


def _longest(recipe: Recipe) -> str:
    """Return the parts of the longest sequence, in tokens."""
    prompt, turn = recipe.data.max_prompt_tokens, recipe.rl.rollout.max_new_tokens
    if recipe.environment is None:
        return f"{prompt} + {turn}"
    turns, between = recipe.max_turns, recipe.environment.observation
    return f"{prompt} + {turns} turns x {turn} + {turns - 1} answers x {between}"


def _micro_batch_line(stage: str, recipe: Recipe, batch: BatchPlan) -> str:
    """Return how an optimizer step is split at the longest lengths; real ones need fewer passes."""
    hardware = recipe.hardware.learner
    parallel = hardware.sequence_parallel
    divided = f", {parallel} of which divide each sequence," * (parallel > 1)
    return (
        f"{stage}, per optimizer step: {batch.sequences_per_step:,} sequences over"
        f" {hardware.ranks} rank(s){divided} -> {batch.sequences_per_rank:,} a rank; when all are"
        f" {batch.longest:,} tokens long, {batch.sequences_per_micro_batch:,} fit a micro-batch of"
        f" {hardware.pass_tokens:,} tokens -> {batch.micro_batches:,} micro-batch(es) a rank"
    )


def _algorithm_lines(recipe: Recipe, rl: BatchPlan) -> list[str]:
    """Return what the algorithm adds to the sequences and steps of an iteration."""
    rollout, critic, ptx = recipe.rl.rollout, recipe.rl.critic, recipe.rl.ptx
    lines = []
    if rollout.greedy_baseline:
        lines.append(f"greedy baseline: {rollout.prompts:,} more answers an iteration")
    filtered = recipe.rl.algorithm.dynamic_sampling
    if filtered is not None:
        drawn = rollout.prompts * filtered.batch_factor
        rounds = filtered.max_rounds
        most = f"at most {rounds} (then '{filtered.on_exhausted}')" if rounds > 0 else "no limit"
        lines.append(
            f"dynamic sampling: a round draws {filtered.batch_factor} x {rollout.prompts:,} ="
            f" {drawn:,} new prompts x {rollout.samples} samples ="
            f" {drawn * rollout.samples:,} sequences; rounds: {most}"
        )
    if critic is not None:
        steps = rl.steps_per_round or 0
        lines.append(
            f"critic: {steps} step(s) an iteration, {steps * rl.rounds:,} in all; the policy takes"
            f" {steps * recipe.rl.actor_iterations:,} in {recipe.rl.actor_iterations:,} iterations"
        )
    if ptx is not None:
        count = round(ptx.sequences_per_sample * rl.sequences_per_step)
        what = "demonstrations" if ptx.path is None else "texts"
        longest = recipe.sft.max_tokens if ptx.path is None else ptx.max_tokens
        lines.append(
            f"ptx: {ptx.sequences_per_sample:g} x {rl.sequences_per_step:,} = {count:,} {what}"
            f" added to each policy step, at most {count * longest:,} tokens"
        )
    return lines


def _overlap_lines(recipe: Recipe) -> list[str]:
    """Return what goes on at the same time in RL, and why the rest does not."""
    stale, every = recipe.rl.rollout.max_staleness, recipe.rl.validation.every
    if stale == 0:
        return [
            "rewards overlap sampling: a row is scored while others are sampled; all of a batch"
            " once it is there, where a function takes a batch",
            "sampling and training take turns, as rl.rollout.max_staleness = 0: rows are of the"
            " policy that they train, so an iteration takes the sum of both",
        ]
    return [
        f"sampling overlaps training, as rl.rollout.max_staleness = {stale}: the rows of"
        f" iteration i are of the policy after iteration i - {1 + stale}, and an iteration"
        " takes the longer of training and of loading weights, sampling and rewards, if"
        " engines and learners have GPUs or cores of their own",
        f"validation overlaps nothing, every {every} iteration(s): it waits until the engines"
        " come to the policy that it names, and the run waits for it",
        f"checkpoints: the last {recipe.rl.checkpoints_kept} are kept, as rows that are under"
        f" way come from the last {1 + stale} policies",
    ]


def _stop_lines(recipe: Recipe, stops: Stops | None) -> list[str]:
    """Return what ends an answer, and where each token and text comes from."""
    unknown = ["stop tokens: known once the model is fetched, and logged then"]
    lines = unknown if stops is None else stops.lines()
    if recipe.model.from_scratch and recipe.model.stop_tokens:
        lines.append(f"stop tokens of model.stop_tokens: {list(recipe.model.stop_tokens)}")
    texts = {"rl.rollout.stop": recipe.rl.rollout.stop, "evaluate.stop": recipe.evaluate.stop}
    return lines + [f"stop strings of {path}: {list(stop)}" for path, stop in texts.items() if stop]


def _memory_lines(fit: Fit) -> list[str]:
    """Return model and memory of each worker; per rank, with a micro-batch of longest sequences."""
    recipe, shape, memory = fit.recipe, fit.shape, fit.memory
    sampler = sampler_line(recipe, fit.device, shape)
    if shape is None or memory is None:
        return [f"model: {fit.shape_note}; memory and disk are left out", sampler]
    bound = "" if shape.exact else "at most "
    lines = [
        f"model: {shape.name}, {bound}{shape.parameters:,} parameters, vocabulary {bound}"
        f"{shape.vocab_size:,}, {recipe.model.dtype}",
        _learner_line("learner", recipe, memory.learner, fit.device),
    ]
    if memory.critic is not None:
        lines.append(_learner_line("critic", recipe, memory.critic, fit.device))
    policies = recipe.rl.rollout.max_staleness + 1
    lines.append(
        f"published policies in the host's memory, max_staleness + 1 = {policies}:"
        f" {gib(memory.published)}"
    )
    if memory.reference:
        lines.append(_reference_line(recipe.hardware.learner, memory.reference))
    if memory.reward_model:
        lines.append(f"reward model, one rank, frozen: weights {gib(memory.reward_model)}")
    lines += [
        sampler,
        engine_line(recipe, memory.engine, memory.kv_tokens, fit.device),
        f"attention of the learners: {fit.attention.name}, {fit.attention.why}",
        f"all workers, host memory: {gib(fit.host_bytes)} of {gib(fit.machine.host)}",
    ]
    if fit.machine.gpus:
        lines.append(f"GPUs visible here: {', '.join(gib(size) for size in fit.machine.gpus)}")
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


def _reference_line(hardware: LearnerHardware, weights: int) -> str:
    """``weights``: bytes that a rank of the reference holds."""
    ranks, advice = hardware.reference_ranks, ""
    if ranks < hardware.ranks:
        advice = (
            f"; it scores what {hardware.ranks} ranks train, and hardware.learner.reference_ranks"
            " divides that, with zero_stage 3 its weights too"
        )
    part = ", of which each holds a part" if hardware.shares_reference else ""
    return (
        f"reference (rl.algorithm.kl is on), {ranks} rank(s){part}: weights {gib(weights)} each"
        f"{advice}"
    )


def _learner_line(name: str, recipe: Recipe, learner: LearnerMemory, device: str) -> str:
    hardware = recipe.hardware.learner
    stage = hardware.stage(recipe.model.dtype)
    offloaded = f", of which {gib(learner.offloaded)} offloaded to the host" * bool(
        learner.offloaded
    )
    reference = f" + reference {gib(learner.reference)}" * bool(learner.reference)
    logits = f" + logits {gib(learner.logits)}" * bool(learner.logits)
    return (
        f"{name}, per rank ({device}, ZeRO-{stage}, {hardware.ranks} rank(s)):"
        f" weights {gib(learner.weights)} + gradients {gib(learner.gradients)} + optimizer"
        f" {gib(learner.optimizer)}{reference}{offloaded}; activations"
        f" {gib(learner.activations)}{logits} in a full micro-batch -> {gib(learner.device)}"
    )


def sampler_line(recipe: Recipe, device: str, shape: ModelShape | None) -> str:
    """Return which rollout engine samples, and why."""
    hardware = recipe.hardware
    if hardware.rollout.engine != AUTO:
        return f"rollout engine: {hardware.rollout.engine}"
    if shape is None and device == "cpu" and hardware.cluster != "in_process":
        return "rollout engine: auto, by the number of parameters, which is not known yet"
    choice = choose(hardware, device, shape.parameters if shape else 0)
    return (
        f"rollout engine: {choice.engine} ({choice.why}); RL that has begun continues with the"
        " engine that it recorded"
    )


def engine_line(recipe: Recipe, engine_bytes: int, kv_tokens: int | None, device: str) -> str:
    """Return what one rollout engine takes and how many longest sequences its cache holds."""
    rollout = recipe.hardware.rollout
    if device == "cuda":
        what = f"{recipe.hardware.memory_of_an_engine:.0%} of its GPU(s), weights included"
    else:
        what = f"{gib(engine_bytes)}, {rollout.kv_cache_gib} GiB of it KV cache"
    cache = "KV cache unknown without a GPU"
    if kv_tokens is not None:
        per_sequence = recipe.longest_sequence(recipe.rl.rollout.max_new_tokens)
        at_once = min(rollout.max_num_seqs, kv_tokens // per_sequence)
        cache = (
            f"KV cache of {kv_tokens:,} tokens -> {at_once:,} longest sequences at once"
            f" (max_num_seqs = {rollout.max_num_seqs:,})"
        )
    return f"rollout engine, each of {rollout.engines}: {what}; {cache}"


def disk_lines(
    disk: Mapping[str, int], store: str, free: int | None, in_store: InStore
) -> list[str]:
    """Return a line per stage that would run with what it leaves on disk, in all and the room.

    ``disk``: bytes by stage when all sequences are longest, empty where they are not known;
    ``free``: bytes, None for a remote store.
    """
    to_run = {stage: size for stage, size in disk.items() if stage not in in_store.stages}
    total = {"in all": sum(to_run.values())} if to_run else {}
    lines = [f"{what:<13}{gib(size):>12}" for what, size in (to_run | total).items()]
    room = "free space of a remote store unknown" if free is None else f"{gib(free)} free"
    lines.append(f"store: {store}, {room}")
    if in_store.unread:
        lines.append(f"what it holds is not known, so every stage is counted: {in_store.unread}")
    return lines


def _count(value: int | None) -> str:
    return "an unknown number of" if value is None else f"{value:,}"
