"""Twenty and more faulty functions, files and models: each is refused before anything starts."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli import main
from tests.rlcore.api.tiny import write_tiny_model
from tests.rlcore.data.row_files import write
from tests.tiers import fast

VERL = {"prompt": "What is 1 + 1?", "data_source": "sums", "reward_model": {"ground_truth": "2"}}
TRL = {"prompt": "What is 1 + 1?", "completion": "#### 2", "ground_truth": "2"}
RANKED = {"prompt": "What is 1 + 1?", "chosen": "2", "rejected": "3"}
MODULE = """
def fine(prompt, response, bonus=0.0): return 1.0
def trl(completions, **kwargs): return [1.0 for _ in completions]
def verl_once(solution_str, ground_truth): return 1.0
def estimator(batch, *, quantile=0.5): ...
def loss(ratio, logprobs, advantages, *, clip): ...
def silent_loss(ratio, logprobs, advantages, **clip): ratio * advantages
def summed_loss(ratio, logprobs, advantages, **clip): return -(ratio * advantages).sum()
"""
Overrides = dict[str, Any]
FUNCTION = "reward.functions.0.name"


def asked(row: dict[str, Any], number: int) -> dict[str, Any]:
    """The row with a question of its own."""
    return {**row, "prompt": f"What is 1 + 1, asked time {number}?"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Modules, files and a model, some of them faulty."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "given_rewards.py").write_text(MODULE)
    (folder / "given_dies.py").write_text("import os; os._exit(3)\n")
    (folder / "given_syntax.py").write_text("def f(prompt, response)\n")
    (folder / "given_key.py").write_text("import os\nKEY = os.environ['JUDGE_KEY']\n")
    write(folder / "train.jsonl", [asked(VERL, n) for n in range(100)])
    write(folder / "solved.parquet", [asked(TRL, n) for n in range(200, 500)])
    write(folder / "ranked.jsonl", [asked(RANKED, n) for n in range(4)])
    write(folder / "long.jsonl", [{**VERL, "prompt": "word " * 1500}] * 200)
    (folder / "rows.csv").write_text("prompt,ground_truth\n")
    (folder / "empty.jsonl").write_text("\n")
    (folder / "cut.parquet").write_bytes(b"PAR1 cut")
    (folder / "line.jsonl").write_text(json.dumps(VERL) + "\n{'prompt': 1}\n")
    write(folder / "foreign.jsonl", [{"asked": "a", "output": "b"}])
    write(folder / "truthless.jsonl", [{**VERL, "reward_model": {"style": "rule"}}] * 3)
    write(folder / "texts.jsonl", [{"text": "a text"}] * 200 + [{"text": None}])
    write_tiny_model(folder / "model")
    return folder


def sources(*files: str, **fields: Any) -> Overrides:
    """A recipe with these training files, and generated rows for the other splits."""
    given = [{"kind": "file", "path": f"FOLDER/{file}", **fields} for file in files]
    return {"data.sources": [*given, {"kind": "arithmetic"}]}


def model(**more: Any) -> Overrides:
    small = {"data.max_prompt_tokens": 48, "sft.max_tokens": 96, "model.max_tokens": 96}
    return {"model.from_scratch": None, "model.path": "FOLDER/broken", **small, **more}


def edited(file: str, **changes: Any) -> Callable[[Path], None]:
    """Set keys of a JSON file of the model."""

    def edit(directory: Path) -> None:
        tree = json.loads((directory / file).read_text()) | changes
        (directory / file).write_text(json.dumps(tree))

    return edit


def without(file: str) -> Callable[[Path], None]:
    return lambda directory: (directory / file).unlink()


def index_of_two(directory: Path) -> None:
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model.safetensors"}
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))


FUNCTIONS: dict[str, tuple[Overrides, str]] = {
    "no such function": (
        {FUNCTION: "given_rewards:fin"},
        "reward.functions[0].name = 'given_rewards:fin': given_rewards has no fin(); did you mean"
        " 'fine'?",
    ),
    "TRL's signature": (
        {FUNCTION: "given_rewards:trl"},
        "'given_rewards:trl' has TRL's signature (completions, **kwargs), which takes lists; a"
        " function here scores one response: take (prompt, response) or",
    ),
    "a module that ends Python": (
        {FUNCTION: "given_dies:f"},
        "'given_dies:f' ended 3 times while starting (exit code 3); its error output, if any, is",
    ),
    "a module that is no Python": (
        {FUNCTION: "given_syntax:f"},
        "'given_syntax:f' cannot be imported: SyntaxError: expected ':' (given_syntax.py line 1)",
    ),
    "a module that reads a key": (
        {FUNCTION: "given_key:f"},
        "KeyError: 'JUDGE_KEY' (given_key.py line 2); name the variable in reward.env",
    ),
    "no room for its imports": (
        {FUNCTION: "given_rewards:fine", "reward.memory_gib": 0.01},
        "reward.memory_gib = 0.01 is too little",
    ),
    "an option of the estimator": (
        {
            "rl.algorithm.advantage": "given_rewards:estimator",
            "rl.algorithm.advantage_options": {"quantil": 0.4},
        },
        "rl.algorithm.advantage = 'given_rewards:estimator' with options {'quantil': 0.4}: got an"
        " unexpected keyword argument 'quantil'; it is called as f(batch, **options), and its"
        " options are quantile; did you mean 'quantile'?",
    ),
    "a loss of another signature": (
        {"rl.algorithm.policy_loss": "given_rewards:loss"},
        "rl.algorithm.policy_loss = 'given_rewards:loss': missing a required argument: 'clip'; it"
        " is called as f(ratio, logprobs, advantages, *, clip_low, clip_high, clip_dual)",
    ),
    "a loss without its return": (
        {"rl.algorithm.policy_loss": "given_rewards:silent_loss"},
        "rl.algorithm.policy_loss = 'given_rewards:silent_loss' failed: TypeError: it returned"
        " NoneType, not a loss per token",
    ),
    "a loss that is summed": (
        {"rl.algorithm.policy_loss": "given_rewards:summed_loss"},
        "policy_loss = 'given_rewards:summed_loss' returned shape (); it must return one loss per",
    ),
}
FILES: dict[str, tuple[Overrides, str]] = {
    "long prompts": (
        sources("long.jsonl"),
        "'over_length', as row 0: more words than data.max_prompt_tokens = 80; raise",
    ),
    "an unknown column in a filter": (
        {"data.filters": ["dificulty > 3"]},
        "data.filters = 'dificulty > 3' is no SQL condition over the rows",
    ),
    "missing": (
        sources("trian.jsonl"),
        "data.sources[0].path = 'FOLDER/trian.jsonl' does not exist; give an existing file; did"
        " you mean 'train.jsonl'?",
    ),
    "csv": (sources("rows.csv"), "'FOLDER/rows.csv' holds no rows; give a file with at least one"),
    "empty": (
        sources("train.jsonl", "empty.jsonl"),
        "data.sources[1]: 'FOLDER/empty.jsonl' holds no rows; give a file with at least one",
    ),
    "foreign columns": (
        sources("foreign.jsonl"),
        "data.sources[0]: 'FOLDER/foreign.jsonl' has columns asked, output, which are of no"
        " accepted form: verl (prompt, data_source, reward_model); TRL",
    ),
    "a folder": (
        sources("model"),
        "data.sources[0].path = 'FOLDER/model' is a folder; give one of",
    ),
    "a line that is no JSON": (sources("line.jsonl"), "line.jsonl line 2 is not JSON"),
    "a cut Parquet file": (sources("cut.parquet"), "cut.parquet is not a readable Parquet file"),
    "no ground truth": (
        sources("truthless.jsonl"),
        "truthless.jsonl: 3 of 3 rows rejected, over data.max_reject_fraction = 0.1; 3 for"
        " 'null_ground_truth', as row 0: reward style 'rule' needs a ground truth; fill",
    ),
    "a folder of GSM8K": (
        {"data.sources": [{"kind": "gsm8k", "path": "FOLDER/model"}]},
        "GSM8K file (of data.sources[0].path) = 'FOLDER/model/train.jsonl' does not exist",
    ),
    "no test rows": (
        {"data.sources": [{"kind": "file", "path": "FOLDER/solved.parquet"}]},
        "data.sources give no test prompts; set data.test_fraction, e.g. to 0.05, or add a source",
    ),
    "no validation rows": (
        {
            "data.validation_fraction": 0,
            "data.sources": [
                {"kind": "file", "path": "FOLDER/solved.parquet"},
                {"kind": "file", "path": "FOLDER/train.jsonl", "split": "test"},
            ],
        },
        "data: no validation prompts, which alone may choose a checkpoint; set",
    ),
    "no demonstrations": (
        {
            "data.sources": [
                {"kind": "file", "path": "FOLDER/train.jsonl"},
                {"kind": "file", "path": "FOLDER/train.jsonl", "split": "test"},
            ],
            "data.validation_fraction": 0.1,
        },
        "data.sources give no training demonstrations, which SFT needs; add a source of messages",
    ),
    "texts without a text": (
        {"rl.ptx": {"path": "FOLDER/train.jsonl"}},
        "rl.ptx.path = 'FOLDER/train.jsonl' row 0 has no text: {",
    ),
    "texts of which one is null": (
        {"rl.ptx": {"path": "FOLDER/texts.jsonl"}},
        "rl.ptx.path = 'FOLDER/texts.jsonl' row 200 has no text: {\"text\": null}; give",
    ),
    "texts over a micro-batch": (
        {"rl.ptx": {"path": "FOLDER/texts.jsonl", "max_tokens": 10**6}},
        "rl.ptx.max_tokens = 1000000 is over the ",
    ),
    "preferences of another form": (
        {
            "reward_model": {"preferences": {"kind": "file", "path": "FOLDER/train.jsonl"}},
            FUNCTION: "reward_model",
        },
        "reward_model.preferences.path = 'FOLDER/train.jsonl': 100 of 100 rows rejected, over"
        " data.max_reject_fraction = 0.1; 100 for 'wrong_form', as row 0: it has columns prompt,",
    ),
}
BOUNDLESS = "{% set ns = namespace(x='x') %}{% for a in range(40) %}{% set ns.x = ns.x ~ ns.x %}"
BOUNDLESS += "{% endfor %}"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
MODELS: dict[str, tuple[Callable[[Path], object], Overrides, str]] = {
    "no config": (without("config.json"), {}, "has no config.json; give a Hugging Face model"),
    "a config that is no JSON": (
        lambda directory: (directory / "config.json").write_text("<html>"),
        {},
        "config.json cannot be read",
    ),
    "an adapter": (
        lambda directory: (directory / "config.json").rename(directory / "adapter_config.json"),
        {},
        "has no config.json; it is an adapter: merge it into its base model first",
    ),
    "an adapter of the hub": (
        lambda directory: [
            (directory / name).rename(directory / f"adapter_{name}")
            for name in ("config.json", "model.safetensors")
        ],
        {},
        "has no config.json; it is an adapter: merge it into its base model first",
    ),
    "no directory": (
        lambda directory: None,
        {"model.path": "FOLDER/model/model.safetensors"},
        "model.path = 'FOLDER/model/model.safetensors' is a file; give the model's directory",
    ),
    "no weights": (without("model.safetensors"), {}, "holds no model*.safetensors; save the model"),
    "a pointer instead of weights": (
        lambda directory: (directory / "model.safetensors").write_text("version https"),
        {},
        "model.safetensors is not a readable safetensors file (13 bytes: ",
    ),
    "half of its weights": (
        index_of_two,
        {},
        "lacks 1 of 2 weight files of its index, such as model-00001-of-00002.safetensors; fetch",
    ),
    "no tokenizer": (
        lambda directory: [file.unlink() for file in directory.glob("*token*")],
        {},
        "has no tokenizer (tokenizer.json); give a directory written by save_pretrained",
    ),
    "no EOS": (
        edited("tokenizer_config.json", eos_token=None),
        {},
        'has no eos_token; set "eos_token" in its tokenizer_config.json',
    ),
    "an EOS of another model": (
        edited("tokenizer_config.json", eos_token="<|im_end|>"),
        {},
        "whose config.json has vocab_size =",
    ),
    "no chat template": (
        without("chat_template.jinja"),
        {},
        "has no chat template; set model.chat_template",
    ),
    "a template that is no Jinja": (
        lambda directory: None,
        {"model.chat_template": "{% for m in messages %}"},
        "model.chat_template: the chat template is not Jinja (line 1: Unexpected end of template",
    ),
    "a template that adds text to a number": (
        lambda directory: None,
        {"model.chat_template": "{% for m in messages %}{{ loop.index + m.content }}{% endfor %}"},
        "model.chat_template: the chat template fails at a question of one line (unsupported",
    ),
    "an endless template": (lambda _: None, {"model.chat_template": ENDLESS}, "longer than 2 s"),
    "a template that doubles": (
        lambda _: None,
        {"model.chat_template": BOUNDLESS},
        "for a question of one line; set model.chat_template to",  # its time ends on a busy machine
    ),
    "a template that repeats": (
        lambda _: None,
        {"model.chat_template": "{{ 'ab' * 10 ** 10 }}"},
        "takes more than 1 GiB of memory for a question of one line",
    ),
    "a short context": (
        lambda directory: None,
        {"model.max_tokens": 128},
        "model.max_tokens = 128 exceeds max_position_embeddings = 96 of model",
    ),
}


@pytest.fixture
def dry_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Overrides], tuple[int, str]]:
    """Return a function that plans the quickstart with overrides: its exit code and what it says,
    each as the command line gives them."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    monkeypatch.setattr("rlcore.models.base.TEMPLATE_S", 2.0)

    def plan(overrides: Overrides) -> tuple[int, str]:
        given = {"data.deduplicate": "exact", "tracking.wandb": False, **overrides}
        text = yaml.safe_dump(given, width=10**6).replace("FOLDER", str(folder))
        pairs = yaml.safe_load(text).items()
        arguments = [part for key, value in pairs for part in ("-o", f"{key}={json.dumps(value)}")]
        code = main(["run", "quickstart", "--dry-run", *arguments])
        said = capsys.readouterr()
        return code, said.err if code else said.out

    return plan


def refused(
    dry_run: Callable[[Overrides], tuple[int, str]], overrides: Overrides, said: str, folder: Path
) -> None:
    code, error = dry_run(overrides)
    assert (code, error.count("\n")) == (2, 1), error
    assert error.startswith("error: ")
    assert said.replace("FOLDER", str(folder)) in error


EVERY_CHANGE = ("no such function", "a module that ends Python", "an option of the estimator")


@pytest.mark.parametrize("case", fast(FUNCTIONS, *EVERY_CHANGE))
def test_a_function_that_cannot_work_is_refused(
    case: str, folder: Path, dry_run: Callable[[Overrides], tuple[int, str]]
) -> None:
    """It was found out after SFT, hours into a run."""
    refused(dry_run, *FUNCTIONS[case], folder)
    assert not [name for name in sys.modules if name.startswith("given_")], "imported in the CLI"


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_used_is_refused(
    case: str, folder: Path, dry_run: Callable[[Overrides], tuple[int, str]]
) -> None:
    refused(dry_run, *FILES[case], folder)


@pytest.mark.parametrize("case", MODELS)
def test_a_model_directory_that_lacks_a_part_is_refused(
    case: str, folder: Path, dry_run: Callable[[Overrides], tuple[int, str]]
) -> None:
    breaks, overrides, said = MODELS[case]
    shutil.rmtree(folder / "broken", ignore_errors=True)
    shutil.copytree(folder / "model", folder / "broken")
    breaks(folder / "broken")
    refused(dry_run, model(**overrides), said, folder)


def test_what_works_is_planned_with_the_rows_of_its_files(
    folder: Path, dry_run: Callable[[Overrides], tuple[int, str]]
) -> None:
    """'An unknown number of training prompts' hides a file of ten rows."""
    shutil.rmtree(folder / "broken", ignore_errors=True)
    shutil.copytree(folder / "model", folder / "broken")
    test = {"kind": "file", "path": "FOLDER/train.jsonl", "split": "test"}
    train = {"kind": "file", "path": "FOLDER/solved.parquet"}
    function = {"name": "given_rewards:fine", "options": {"bonus": 0.5}}
    code, said = dry_run(
        model(
            **{
                "data.sources": [train, test],
                "data.validation_fraction": 0.1,
                "reward.functions": [function],
                "rl.algorithm.advantage": "given_rewards:estimator",
                "rl.algorithm.advantage_options": {"quantile": 0.4},
            }
        )
    )
    assert code == 0, said
    assert "data: 270 training prompts, 100 test prompts, 270 demonstrations, before" in said


def test_the_first_rows_alone_refuse_nothing(
    folder: Path, dry_run: Callable[[Overrides], tuple[int, str]]
) -> None:
    """A file may begin with bad rows, then prompts, and hold its demonstrations behind them."""
    bare = {key: TRL[key] for key in ("prompt", "ground_truth")}
    rows = [{**bare, "prompt": ""}] * 64 + [asked(bare, n) for n in range(200, 886)]
    rows += [asked(TRL, n) for n in range(886, 936)]
    write(folder / "sorted.jsonl", rows)
    train = {"kind": "file", "path": "FOLDER/sorted.jsonl"}
    test = {"kind": "file", "path": "FOLDER/train.jsonl", "split": "test"}
    code, said = dry_run({"data.sources": [train, test], "data.validation_fraction": 0.1})
    assert code == 0, said
    assert "720 training prompts, 100 test prompts, an unknown number of demonstrations" in said


def test_a_file_of_preferences_is_counted_and_texts_are_read(
    folder: Path, dry_run: Callable[[Overrides], tuple[int, str]]
) -> None:
    write(folder / "many.jsonl", [asked(RANKED, n) for n in range(200)])
    write(folder / "texts.jsonl", [{"text": "Two and two are four."}])
    given = {"kind": "file", "path": "FOLDER/many.jsonl", "limit": 150}
    code, said = dry_run(
        {
            "reward_model": {"preferences": given, "max_tokens": 96},
            FUNCTION: "reward_model",
            "rl.ptx": {"path": "FOLDER/texts.jsonl"},
        }
    )
    assert code == 0, said
    assert "reward model: 270 responses of a file -> " in said  # two of each of 135 rows
