"""Settings of verl that are counted in prompts, sequences, tokens and epochs; data and reward."""

import os
import re
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.verl.episodes import lengths, longest
from rlcore.verl.settings import ACTOR, MODEL, ROLLOUT, VerlRun
from schemas.errors import UserError
from schemas.names import REWARD_MODEL
from schemas.reward_model import SampledPreferences

# Training rows of data sets by what the file's path holds: the names that verl's scripts give them.
GSM8K_ROWS = 7473
TRAIN_ROWS = {
    "gsm8k": GSM8K_ROWS,
    r"/math/train\.parquet$": 7500,
    r"/dapo-math-17k\.parquet$": 1_791_700,
}
# Path words of data whose answers are compared by value: verl has a rule for each data_source.
MATHEMATICS = {"gsm8k", "math", "aime"}
# Path words of data whose answers are programs: verl's data sources with tests.
PROGRAMS = {"code", "codecontests", "apps", "codeforces", "taco", "livecodebench"}
VALIDATION_FRACTION = 0.03  # of the training prompts; verl validates on the test split
# Values of settings that are not given: verl's defaults for a whole command, and those of its
# one-GPU example for an excerpt.
VERL_SIZES = {"prompts": 1024, "mini": 256, "epochs": 30}
VERL_EXAMPLE_SIZES = {"prompts": 64, "mini": 32, "epochs": 1}
VERL_EXAMPLE_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
MICRO_BATCH_TOKENS = 16384  # verl's ppo_max_token_len_per_gpu


def _sizes(run: VerlRun) -> dict[str, int]:
    return VERL_EXAMPLE_SIZES if run.excerpt else VERL_SIZES


def batch_sizes(run: VerlRun) -> tuple[int, int]:
    """Return (prompts per iteration, mini-batches of them); verl's mini-batch is in prompts too.

    Raises UserError when the mini-batch does not divide the batch.
    """
    key, mini_key = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"
    prompts = run.count(key, _sizes(run)["prompts"])
    mini = run.count(mini_key, min(_sizes(run)["mini"], prompts))
    if mini < 1 or prompts % mini:
        raise UserError(
            f"{mini_key} = {mini} does not divide {key} = {prompts}; set it to a divisor, as a"
            " batch is cut into whole mini-batches of prompts"
        )
    return prompts, prompts // mini


def batches(run: VerlRun) -> dict[str, Any]:
    """Batch, mini-batch, micro-batch, and epochs as iterations."""
    prompts, mini_batches = batch_sizes(run)
    for key, size in (
        ("data.train_batch_size", prompts),
        (f"{ACTOR}.ppo_mini_batch_size", prompts // mini_batches),
    ):
        if not run.has(key):
            whose = "as in verl's GSM8K example" if run.excerpt else "verl's default"
            run.note(f"{key} is not set: {size}, {whose}")
    run.note(
        f"{ACTOR}.ppo_mini_batch_size is in prompts: {prompts} / {prompts // mini_batches} ="
        f" rl.update.mini_batches {mini_batches}"
    )
    return {
        "rl.iterations": _iterations(run, prompts),
        "rl.rollout.prompts": prompts,
        "rl.update.mini_batches": mini_batches,
        "rl.update.epochs": run.count(f"{ACTOR}.ppo_epochs", 1),
        "hardware.learner.micro_batch_tokens": _micro_batch_tokens(run),
    }


def _micro_batch_tokens(run: VerlRun) -> int:
    """Sequences per GPU and pass, converted to tokens of the longest sequence; at least one."""
    sequence = longest(run)
    dynamic = run.flag(f"{ACTOR}.use_dynamic_bsz")
    micro = run.count(f"{ACTOR}.ppo_micro_batch_size_per_gpu", 0)
    if not micro and run.has(f"{ACTOR}.ppo_micro_batch_size"):
        gpus = run.count("trainer.n_gpus_per_node", 1) * run.count("trainer.nnodes", 1)
        micro = max(1, run.count(f"{ACTOR}.ppo_micro_batch_size", 1) // gpus)
    # the ranked responses of a prompt share a micro-batch of the reward model
    least = sequence * (SampledPreferences().max_responses if trains_reward_model(run) else 1)
    if micro and not dynamic:
        tokens = max(least, micro * sequence)
        run.note(
            f"{ACTOR}.ppo_micro_batch_size_per_gpu: {micro} x {sequence} tokens"
            + (", raised" if tokens > micro * sequence else "")
            + f" = hardware.learner.micro_batch_tokens {tokens}"
        )
        return tokens
    return max(least, run.count(f"{ACTOR}.ppo_max_token_len_per_gpu", MICRO_BATCH_TOKENS))


def _iterations(run: VerlRun, prompts: int) -> int:
    steps = run.count("trainer.total_training_steps", 0)
    if steps > 0:
        return steps
    epochs = run.count("trainer.total_epochs", _sizes(run)["epochs"])
    rows, whence = _train_rows(run)
    if rows < prompts:
        raise UserError(
            f"data.train_batch_size = {prompts} exceeds the {rows} training rows ({whence}); lower"
            " it"
        )
    iterations = rows // prompts * epochs
    run.note(
        f"trainer.total_epochs: {rows} rows ({whence}) // {prompts} x {epochs} epoch(s) ="
        f" {iterations} iterations"
    )
    return iterations


def _train_rows(run: VerlRun) -> tuple[int, str]:
    """Return the number of training rows and its source."""
    if run.train_rows is not None:
        return run.train_rows, "--train-rows"
    train = files(run, "data.train_files")
    if train and all(Path(file).is_file() and file.endswith(".parquet") for file in train):
        return pl.scan_parquet(train).select(pl.len()).collect().item(), "counted"
    if not train:
        return GSM8K_ROWS, "GSM8K"
    counts = []
    for file in dict.fromkeys(train):
        known = [rows for name, rows in TRAIN_ROWS.items() if re.search(name, f"/{file.lower()}")]
        if not known:
            raise UserError(
                f"trainer.total_epochs needs the number of training rows and {file} is not"
                " available to count them; pass --train-rows N, or set trainer.total_training_steps"
            )
        counts.append(known[0])
    return sum(counts), " + ".join(f"{count:,}" for count in counts) + " by the files' names"


def files(run: VerlRun, key: str) -> list[str]:
    """Return the files of a key, the home directory written out."""
    value = run.get(key, [])
    listed = value if isinstance(value, list) else [value]
    return [os.path.expanduser(str(file)) for file in listed]


def _is_gsm8k(files: list[str]) -> bool:
    """Return whether the file names are GSM8K's, or there are none (verl's example uses it)."""
    return all("gsm8k" in file.lower() for file in files)


def _words(file: str) -> set[str]:
    """Return the words of a path, the home directory left out."""
    return set(re.findall(r"[a-z0-9]+", file.removeprefix(os.path.expanduser("~")).lower()))


_MODEL_PATH = "reward_model.model.path"


def trains_reward_model(run: VerlRun) -> bool:
    """Return whether a learned reward model scores that the command does not name: the run trains
    one then.

    Raises UserError for data with neither demonstrations nor a rule to rank samples by.
    """
    if run.reward is not None or not run.flag("reward_model.enable") or run.has(_MODEL_PATH):
        return False
    if not _is_gsm8k(files(run, "data.train_files")):
        raise UserError(
            f"reward_model.enable = True without {_MODEL_PATH}: the run trains its own, for which"
            " it has no preferences; name the model, or pass --reward package.module:function"
        )
    return True


def data(run: VerlRun) -> dict[str, Any]:
    """Model and data. A whole command names both; an excerpt defaults to verl's example."""
    model, train = run.get(f"{MODEL}.path"), files(run, "data.train_files")
    for key, found in ((f"{MODEL}.path", model), ("data.train_files", train)):
        if not found and not run.excerpt:
            raise UserError(
                f"{key} is missing; set it, or add ... to the command to mark it as an excerpt"
            )
    if model is None:
        model = VERL_EXAMPLE_MODEL
        run.note(f"{MODEL}.path is not shown: {VERL_EXAMPLE_MODEL}, as in verl's GSM8K example")
    prompt, response = lengths(run)
    warm = trains_reward_model(run)
    sequence = longest(run)
    limit = run.count(f"{ROLLOUT}.max_model_len", sequence)
    dropped = run.flag("data.filter_overlong_prompts")
    truncation = run.choice("data.truncation")
    ours: dict[str, Any] = {
        "model.path": os.path.expanduser(model) if model.startswith("~") else model,
        "model.dtype": "bfloat16",
        "model.max_tokens": max(limit, sequence),
        "data.sources": _sources(run, train),
        "data.max_prompt_tokens": prompt,
        "data.over_length": "drop" if dropped or not train else truncation,
        "data.validation_fraction": VALIDATION_FRACTION,
        "sft.enabled": warm,
        "sft.max_tokens": sequence,
        "rl.rollout.max_new_tokens": response,
        "evaluate.checkpoints": ["base", *(["sft"] if warm else []), "rl"],
        "evaluate.max_new_tokens": response,
    }
    if ours["data.sources"][0]["kind"] == "file":
        ours["data.deduplicate"] = "off"
        run.note("data.train_files: no row is dropped as a duplicate, as verl drops none")
    run.note(
        f"validation takes {VALIDATION_FRACTION:.0%} of the training prompts; verl's val_files are"
        " the test split, evaluated once at the end"
    )
    return ours


def _sources(run: VerlRun, train: list[str]) -> list[dict[str, Any]]:
    if not train or trains_reward_model(run):
        run.note(
            "data.train_files: GSM8K with its demonstrations, from $GSM8K_DIR or the hub"
            if train
            else "data.train_files is not shown: GSM8K, as in verl's example"
        )
        return [{"kind": "gsm8k"}]
    held = files(run, "data.val_files")
    if not held:
        raise UserError("data.val_files is missing; set it: the trained model is evaluated on it")
    for file in (*train, *held):
        if not re.search(r"\.(parquet|jsonl?)$", file):
            raise UserError(f"data file '{file}' is neither .parquet nor .jsonl; give such a file")
    key = run.get("data.reward_fn_key", "data_source")
    columns = {} if key == "data_source" else {"columns": {"data_source": key}}
    return [
        {"kind": "file", "path": file, "split": split, **columns}
        for split, listed in (("train", train), ("test", held))
        for file in listed
    ]


def reward(run: VerlRun) -> dict[str, Any]:
    """The reward: a user's function, a trained model, or GSM8K's rule."""
    if run.reward is not None:
        return {"reward.functions": [{"name": run.reward}]}
    custom = _custom_reward(run)
    if custom is not None:
        return {"reward.functions": [custom]}
    if run.flag("reward_model.enable") and (path := run.get(_MODEL_PATH)):
        run.note(
            f"{_MODEL_PATH}: it reads each conversation by its own tokenizer and chat template"
        )
        return {
            "reward_models": {"model": {"path": path}},
            "reward.functions": [{"name": f"{REWARD_MODEL}:model"}],
        }
    if trains_reward_model(run):
        _, response = lengths(run)
        run.note(
            "reward_model.enable: the run trains its reward model itself, after a warm start on the"
            " demonstrations, on samples ranked by GSM8K's rule; the rule is reported, not trained"
            " on"
        )
        return {
            "reward_model.preferences": {"kind": "samples", "max_new_tokens": response},
            "reward_model.max_tokens": sum(lengths(run)),
            "reward.functions": [
                {"name": REWARD_MODEL},
                {"name": "gsm8k", "weight": 0, "options": {"mode": "strict"}},
            ],
        }
    named = [*files(run, "data.train_files"), *files(run, "data.val_files")]
    if _is_gsm8k(named):
        return {"reward.functions": [{"name": "gsm8k", "options": {"mode": "strict"}}]}
    if _judged_by_programs(run, named):
        run.note(
            "reward_model.sandbox_fusion: the reward 'code' runs the programs on this machine, in"
            " its own sandbox; no service is asked"
        )
        return {"reward.functions": [{"name": "code"}]}
    for file in named:
        if not _words(file) & MATHEMATICS:
            raise UserError(
                f"verl picks the reward of {file} by its data_source and only the rules of GSM8K"
                " and of mathematics have a counterpart; set custom_reward_function.path or pass"
                " --reward package.module:function"
            )
    run.notes.differs.append(
        "the reward: verl has a rule for each data_source, which looks for the answer's text in"
        " one form; 'math' compares the last answer of every row by its value"
    )
    if all(_words(file) & {"dapo", "aime"} for file in files(run, "data.train_files")):
        run.note("the reward: verl's rule of DAPO and AIME pays +1 or -1: weight 2, offset -1")
        return {"reward.functions": [{"name": "math", "weight": 2.0}], "reward.offset": -1.0}
    return {"reward.functions": [{"name": "math"}]}


def _custom_reward(run: VerlRun) -> dict[str, Any] | None:
    """Return the user's function as ``path/to/file.py:function``, its arguments as options."""
    path, place = run.get("custom_reward_function.path"), "custom_reward_function.reward_kwargs"
    if path is None:
        return None
    file = os.path.expanduser(str(path)).removeprefix("pkg://")  # verl's mark of a module
    name = f"{file}:{run.get('custom_reward_function.name', 'compute_score')}"
    run.note(f"custom_reward_function: {name}, whose process sees no variable but reward.env")
    if run.get("reward_model.reward_manager") == "batch":
        run.notes.differs.append(
            f"reward_model.reward_manager = batch: {name} takes lists there and one row here;"
            " write it for one row"
        )
    options: dict[str, Any] = {}
    for key in run.values:
        if key == place and isinstance(run.get(key), dict):
            options |= run.get(key)
        elif key.startswith(f"{place}.") and run.has(key):
            options[key.removeprefix(f"{place}.")] = run.get(key)
    return {"name": name, **({"options": options} if options else {})}


def _judged_by_programs(run: VerlRun, named: list[str]) -> bool:
    """Return whether verl runs the responses as programs: in its sandbox, by tests."""
    asked = run.has("reward_model.sandbox_fusion.url")
    return asked and bool(named) and all(_words(file) & PROGRAMS for file in named)


def evaluation(run: VerlRun) -> dict[str, Any]:
    """Sampling of the stage evaluate; validation during RL is greedy."""
    theirs, ours = f"{ROLLOUT}.val_kwargs", {}
    for key in ("temperature", "top_p"):
        value = run.number(f"{theirs}.{key}", 0.0)
        if value > 0:
            ours[f"evaluate.{key}"] = value
    number = run.count(f"{theirs}.n", 1)
    if number > 1:
        ours |= {"evaluate.samples": number, "evaluate.pass_k": [1, number]}
    if ours:
        run.note(f"{theirs}: of the stage evaluate; validation during RL is greedy")
    if run.flag("trainer.val_only"):
        run.note(
            "trainer.val_only: nothing is to be trained, so evaluate the model on this recipe,"
            f" instead of running it: rl-pipeline evaluate {run.get(f'{MODEL}.path', 'MODEL')}"
            " RECIPE"
        )
        if number == 1:
            ours |= {"evaluate.samples": 1, "evaluate.pass_k": [1]}  # verl draws nothing else
    return ours


def bookkeeping(run: VerlRun) -> dict[str, Any]:
    """How often to validate and to save, what to start from, and whether to log to wandb."""
    if isinstance(path := run.get("trainer.resume_from_path"), str):
        found = re.search(r"global_step_(\d+)", path)
        step = found[1] if found else "N"
        run.note(
            f"trainer.resume_from_path = {path}: checkpoints of verl are not read; run this recipe"
            f" up to there, then `rl-pipeline fork latest@{step} -o PATH=VALUE` continues from it"
        )
    validate, save = run.count("trainer.test_freq", 0), run.count("trainer.save_freq", 0)
    ours: dict[str, Any] = {}
    if validate > 0:
        ours["rl.validation.every"] = validate
    elif run.has("trainer.test_freq"):
        run.note("trainer.test_freq <= 0: validation stays on, as it chooses the checkpoint")
    if save > 0:
        ours["rl.checkpoint.every"] = save
    elif run.has("trainer.save_freq"):
        run.note("trainer.save_freq <= 0: checkpoints stay on, as a killed run resumes there")
    if run.has("trainer.logger"):
        loggers = run.get("trainer.logger")
        ours["tracking.wandb"] = "wandb" in (loggers if isinstance(loggers, list) else [loggers])
    return ours
