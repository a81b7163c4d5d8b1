"""The facts of a model card: from the recipe, from the artifacts that the model descends from,
and a Python snippet with a prompt of the evaluation and its recorded answer.

What the store recorded is preferred to what the recipe asked for, and no path of this machine is
published.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

import polars as pl

from rlcore.evaluation.license import export_license
from rlcore.evaluation.model_card import ModelCard, RewardTerm
from rlcore.recipes.load import recipe_digest
from rlcore.results.lineage import Trace, fold, trace
from rlcore.results.provenance import DISTRIBUTION, TRUSTS, code_state
from rlcore.store.artifacts import ArtifactStore
from rlcore.store.fingerprint import installed
from schemas.artifacts import ArtifactRef
from schemas.data import (
    AimeSource,
    ArithmeticSource,
    EnvironmentSource,
    FileSource,
    Gsm8kSource,
    HubSource,
    InstructionsSource,
    MathSource,
    ProgramsSource,
    Source,
)
from schemas.model import Adapter
from schemas.names import (
    AVERAGE,
    BASE_MODEL,
    REWARD_MODEL,
    WEIGHTS,
    is_model,
    ranking_term,
    term_name,
)
from schemas.outcomes import FinishReason, Outcome
from schemas.recipe import Recipe
from schemas.reward_model import (
    VERIFIER,
    FilePreferences,
    Gsm8kSolutions,
    RewardModelSection,
    SampledPreferences,
)

_SNIPPET = """\
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

directory = "."  # where this file is, or the model's name on the hub
tokenizer = AutoTokenizer.from_pretrained(directory{trust})
model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto"{trust})
# As in the evaluation: the likeliest token each time, without penalties, up to the end token.
model.generation_config = GenerationConfig(
    do_sample=False,
    max_new_tokens={max_new_tokens},
    eos_token_id=model.generation_config.eos_token_id or tokenizer.eos_token_id,
    pad_token_id=tokenizer.pad_token_id,{stop_strings}
)
messages = {messages!r}
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
)
output = model.generate(**inputs{stopping})
prompt_tokens = inputs["input_ids"].shape[1]
answer = tokenizer.decode(output[0, prompt_tokens:], skip_special_tokens=True){cutting}
print(answer)
# The evaluation recorded: {answer!r}
"""

_CUTTING = """
answer = answer[: min([answer.find(stop) for stop in {stop!r} if stop in answer] or [None])]"""


def choose_example(
    completions: pl.DataFrame, prompts: pl.DataFrame, checkpoint: str
) -> tuple[list[dict[str, str]], str] | None:
    """Return the shortest prompt (Prompts), as messages, that ``checkpoint`` answered (Completions)
    greedily, and its answer.

    Where some answers are right, it is the shortest of their prompts. None where there is none: all
    were aborted, or another checkpoint was evaluated.
    """
    greedy = completions.filter(
        (pl.col("checkpoint") == checkpoint)
        & (pl.col("mode") == "greedy")
        & (pl.col("finish_reason") != FinishReason.ABORT.value)
    )
    order = greedy.sort(
        pl.col("outcome") != Outcome.OK.value, pl.col("prompt").str.len_chars(), "uid"
    )
    if order.is_empty():
        return None
    first = order.row(0, named=True)
    (messages,) = prompts.filter(pl.col("uid") == first["uid"])["prompt"].to_list()
    return messages, first["response"]


def render_snippet(
    messages: list[dict[str, str]],
    answer: str,
    *,
    max_new_tokens: int,
    stop: Sequence[str] = (),
    trust_remote_code: bool = False,
) -> str:
    """Return Python that answers ``messages`` from within the exported directory.

    Text of the prompt is in it as Python literals, each on one line: it can neither end the
    card's code block nor become code.
    """
    return _SNIPPET.format(
        trust=", trust_remote_code=True" if trust_remote_code else "",
        max_new_tokens=max_new_tokens,
        stop_strings=f"\n    stop_strings={list(stop)!r}," if stop else "",
        stopping=", tokenizer=tokenizer" if stop else "",
        cutting=_CUTTING.format(stop=list(stop)) if stop else "",
        messages=messages,
        answer=answer,
    )


ITERATION = "iterations"  # kind of the record of an iteration
_TRUSTED = "true: the model's own code was run"
LIBRARIES = ("torch", "transformers", "vllm", "deepspeed")


def gather_card(
    recipe: Recipe,
    store: ArtifactStore,
    parents: Mapping[str, ArtifactRef],
    *,
    warn: Callable[[str], None],
) -> ModelCard:
    """Return the card of the policy among ``parents``: dataset, policy, and evaluation where it
    was evaluated.

    The policy may be the record of an iteration; the reward model is then among ``parents``, where
    there is one. ``warn``: see ``export_license``. Raises ArtifactError where a parent cannot be
    read.
    """
    dataset, policy, evaluation = parents["dataset"], parents["policy"], parents.get("evaluation")
    prompts = store.table(dataset, "prompts")
    base = store.manifest(store.manifest(dataset).parents[BASE_MODEL]).metadata.get("origin", {})
    scorer = {**store.manifest(policy).parents, **parents}.get(REWARD_MODEL)
    behind = trace(store, [policy] if evaluation is None else [policy, evaluation])
    number = f"-iteration{_iteration(policy)}" if policy.kind == ITERATION else ""
    results = example = None
    if evaluation is not None:
        results, drawn = (store.table(evaluation, t) for t in ("eval_results", "completions"))
        example = choose_example(drawn, prompts, recipe.policies[-1])
    return ModelCard(
        name=f"{recipe.name}-seed{recipe.seed}{number}",
        checkpoint=recipe.policies[-1],
        results=results,
        ancestors=ancestors(behind, policy, recipe),
        inputs=_inputs(behind),
        base_model=recipe.model.path,
        datasets=_hub_datasets(recipe),
        license=export_license(recipe, commit=base.get("commit"), warn=warn),
        recipe={
            "name": recipe.name,
            "digest": recipe_digest(recipe),
            "seed": str(recipe.seed),
            **({TRUSTS: _TRUSTED} if recipe.model.trust_remote_code else {}),
            **_code(behind),
        },
        reward=tuple(
            RewardTerm(term_name(f.name, f.options), f.weight, is_model(f.name))
            for f in recipe.reward.functions
        ),
        reward_model=_reward_model(recipe, store, scorer),
        sources=tuple(_source(source) for source in recipe.data.sources),
        prompts=_prompt_counts(prompts),
        data=_data(store, dataset),
        training=_training(recipe, store, policy),
        evaluation=_evaluation(recipe) if evaluation is not None else {},
        versions=versions(),
        snippet=example
        and render_snippet(
            *example,
            max_new_tokens=recipe.evaluate.max_new_tokens,
            stop=recipe.evaluate.stop,
            trust_remote_code=recipe.model.trust_remote_code,
        ),
    )


def _iteration(policy: ArtifactRef) -> int:
    """Return the number of the iteration that a record is of."""
    return int(policy.key.rpartition("/")[2])


def ancestors(trace: Trace, policy: ArtifactRef, recipe: Recipe) -> tuple[dict[str, str], ...]:
    """Return what ``trace`` holds, ``policy`` named as this model; the records of iterations are
    one row with their number."""
    last = "RL" if recipe.rl.enabled else "preference training"
    words = _WHAT | (_WHAT_WITH_PREFERENCE if recipe.preference is not None else {})
    rows = []
    for nodes, name in fold(trace.nodes):
        ref, count = nodes[0].ref, len(nodes)
        what = (
            f"the policy after {last}: this model"
            if count == 1 and (ref.kind, ref.key) == (policy.kind, policy.key)
            else words.get(ref.kind, "")
        )
        if count > 1:
            total = sum(sum(node.ref.rows.values()) for node in nodes)
            what = f"{what}: {count:,} artifacts of {total:,} rows"
        finding = nodes[0].problem or nodes[0].note
        what = f"{what}; {finding}" if finding else what
        sha256 = ref.sha256 if count == 1 else "each its own"
        rows.append({"what": what, "kind": ref.kind, "key": name, "sha256": sha256})
    return tuple(rows)


def _code(trace: Trace) -> dict[str, str]:
    """Return the commits that the artifacts were made by."""
    commits = dict.fromkeys(
        f"{state['commit'] or 'unknown'}{', with changes' if state['dirty'] else ''}"
        for state in trace.code
    )
    return {"commit": "; ".join(commits)} if commits else {}


def _inputs(trace: Trace) -> tuple[dict[str, str], ...]:
    """Return what was read from outside the store; of a path its last part only."""
    rows = {tuple(row.values()): row for row in trace.inputs}
    return tuple(
        {**row, "url": row["url"] if "://" in row["url"] else PurePosixPath(row["url"]).name}
        for row in rows.values()
    )


_WHAT = {
    "evaluation": "completions on the test split and the figures of this card",
    "policy": "the policy after SFT, with which RL started",
    REWARD_MODEL: "scalar head that scores responses",
    "preferences": "ranked responses that the reward model was trained on",
    "dataset": "prompts and demonstrations",
    BASE_MODEL: "weights and tokenizer that training started from",
    "iterations": "which weights each iteration of RL turned into which",
    "rollouts": "what the policy sampled to learn from",
    "rewards": "how that was scored",
    "advantages": "what the updates learnt from",
    "recipe": "the resolved recipe",
    "code": "commit and library versions",
    "inputs": "what was read from outside the store",
    "checkpoint": "state that RL went on from",
}
# There may be two policies below this one then, and two uses of preferences.
_WHAT_WITH_PREFERENCE = {
    "policy": "a policy that a later stage started from",
    "preferences": "responses with ranks or labels that were trained on",
}


def versions() -> dict[str, str]:
    """Return the versions of this package and of the libraries that decide what is learnt."""
    return {
        DISTRIBUTION: code_state()["version"] or "not installed, run from its source",
        **{name: installed(name).partition("==")[2] or "absent" for name in LIBRARIES},
    }


def _reward_model(
    recipe: Recipe, store: ArtifactStore, scorer: ArtifactRef | None
) -> dict[str, str]:
    """Return what there is to say of the reward model; {} where there is none."""
    if recipe.reward_model is None or scorer is None:
        return {}
    judged = store.table(scorer, "pair_accuracy")
    row = judged.filter(pl.col("level") == "all").row(0, named=True)
    right = f"{row['accuracy']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
    facts = {
        "trained on": _preferences(recipe.reward_model),
        "held-out pairs ordered rightly": f"{right} of {row['num_pairs']:,}",
    }
    critic = recipe.rl.critic
    if critic and critic.init == REWARD_MODEL:
        facts["also"] = "the critic starts from it"
    return facts


def _preferences(section: RewardModelSection) -> str:
    if isinstance(section.preferences, SampledPreferences):
        by = section.preferences.ranked_by
        by = "the reward functions" if by == VERIFIER else ranking_term(by)
        return f"samples of the policy that RL started with, ranked by {by}"
    return _file_of(section.preferences)


def _file_of(source: FilePreferences | Gsm8kSolutions) -> str:
    if isinstance(source, FilePreferences):
        return f"the rankings of the file {PurePosixPath(source.path).name}"
    return "GSM8K's example model solutions, ranked by their flag"


def _source(source: Source) -> str:
    """Return where rows came from; of a path its last part only."""
    match source:
        case Gsm8kSource(hub_name=name):
            return f"GSM8K ({name})"
        case MathSource(hub_name=name):
            return f"MATH ({name})"
        case AimeSource(year=year, split=split):
            return f"AIME {year} ({source.hub_name}), as {split}"
        case FileSource(path=path, split=split):
            return f"file {PurePosixPath(path).name}, as {split}"
        case HubSource():
            pinned = "".join(f", {part}" for part in (source.config, source.revision) if part)
            return f"hub dataset {source.name}{pinned}, its {source.hub_split} as {source.split}"
        case ArithmeticSource():
            fewest, most = source.steps
            return f"generated arithmetic word problems of {fewest} to {most} steps"
        case ProgramsSource():
            return "generated descriptions of one-line Python programs"
        case InstructionsSource():
            return "generated instructions that a rule checks"
        case EnvironmentSource():
            return f"beginnings of episodes of {source.data_source or 'the environment'}"


def _prompt_counts(prompts: pl.DataFrame) -> tuple[dict[str, str], ...]:
    keys = ["data_source", "split", "subset"]
    groups = prompts.group_by(keys, maintain_order=True).len()
    return tuple(
        {"source": source, "split": split, "subset": subset, "prompts": f"{count:,}"}
        for source, split, subset, count in groups.iter_rows()
    )


def _data(store: ArtifactStore, dataset: ArtifactRef) -> dict[str, str]:
    rejected = store.table(dataset, "rejects").select("source", "row").n_unique()
    return {
        "demonstrations": f"{store.manifest(dataset).rows['demonstrations']:,}",
        "rows rejected in preparation": f"{rejected:,}",
    }


def _training(recipe: Recipe, store: ArtifactStore, policy: ArtifactRef) -> dict[str, str]:
    schedule, rl = f"{recipe.sft.epochs} epoch(s)", recipe.rl
    if recipe.sft.max_steps is not None:
        schedule += f", at most {recipe.sft.max_steps:,} steps"
    algorithm = f"{rl.preset} (advantage {rl.algorithm.advantage}, loss {rl.algorithm.policy_loss})"
    return {
        **({"algorithm": algorithm} if rl.enabled else {}),
        "SFT": schedule if recipe.sft.enabled else "none",
        **_preference(recipe),
        **(_rl(recipe, store, policy) if rl.enabled else {}),
        **({"adapter": _adapter(recipe.model.adapter)} if recipe.model.adapter else {}),
        "precision": recipe.model.dtype,
    }


def _rl(recipe: Recipe, store: ArtifactStore, policy: ArtifactRef) -> dict[str, str]:
    rl = recipe.rl
    if policy.kind == ITERATION:
        iterations = f"{_iteration(policy)} of {rl.iterations} that the recipe has"
    else:
        done = store.manifest(policy).metadata
        best = f"iteration {done['best_iteration']}, the best by validation, is this model"
        if done.get(WEIGHTS) == AVERAGE:
            best += f", as the average of the weights up to there (decay {rl.update.ema:g})"
        iterations = f"{done['iteration']}; {best}"
    return {
        "RL iterations": iterations,
        "prompts x samples": f"{rl.rollout.prompts} x {rl.rollout.samples}",
        **({"a response also ends with": _quoted(rl.rollout.stop)} if rl.rollout.stop else {}),
        "RL learning rate": f"{rl.update.optimizer.lr:g}",
    }


def _preference(recipe: Recipe) -> dict[str, str]:
    """Return how preferences were trained on; {} where they were not."""
    section = recipe.preference
    if section is None:
        return {}
    how = f"{section.algorithm}, beta {section.beta:g}, learning rate {section.optimizer.lr:g}"
    if section.algorithm == "dpo":
        how += f", loss {section.loss}"
    return {"preference": f"{how}; {section.epochs} epoch(s) of {_file_of(section.data)}"}


def _adapter(adapter: Adapter) -> str:
    targets = adapter.targets if isinstance(adapter.targets, str) else ", ".join(adapter.targets)
    base = " over 4-bit weights (nf4)" if adapter.base == "nf4" else ""
    return (
        f"LoRA of rank {adapter.rank}, scale {adapter.scale:g}, on {targets}{base}, in"
        f" {', '.join(adapter.stages)}; merged into these weights, and alone in adapter/"
    )


def _evaluation(recipe: Recipe) -> dict[str, str]:
    section = recipe.evaluate
    most = "all" if section.max_prompts is None else f"at most {section.max_prompts:,}"
    drawn = f"T = {section.temperature:g}, top_p = {section.top_p:g}"
    sampled = {"sampled": f"{section.samples} per prompt, {drawn}"}
    return {
        "prompts": f"{most} of each source and subset of the test split",
        **(sampled if section.samples > 1 else {}),
        "longest answer": f"{section.max_new_tokens} tokens",
        **({"an answer also ends before": _quoted(section.stop)} if section.stop else {}),
    }


def _quoted(texts: Sequence[str]) -> str:
    return ", ".join(map(repr, texts))


def _hub_datasets(recipe: Recipe) -> tuple[str, ...]:
    """Return the hub names of the recipe's sources."""
    names = [
        source.name if isinstance(source, HubSource) else source.hub_name
        for source in recipe.data.sources
        if isinstance(source, Gsm8kSource | MathSource | AimeSource | HubSource)
    ]
    return tuple(dict.fromkeys(names))
