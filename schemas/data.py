"""Recipe section ``data``: the sources of prompts and demonstrations, and their preparation."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from schemas.section import Section, rule, setting

ARITHMETIC, PROGRAMS, INSTRUCTIONS = "arithmetic", "programs", "instructions"
ENVIRONMENT = "environment"
GENERATED = (ARITHMETIC, PROGRAMS, INSTRUCTIONS, ENVIRONMENT)  # their kinds

VALIDATION_FRACTION = 0.05  # where validation prompts must come from the training rows
GSM8K_HUB = "openai/gsm8k"
GSM8K_ROWS = {"train": 7473, "test": 1319}  # of the original files
GSM8K_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'


class Gsm8kSource(Section):
    """GSM8K from its original ``train.jsonl``/``test.jsonl``, or from the hub."""

    kind: Literal["gsm8k"] = setting("gsm8k", "the GSM8K data set")
    path: str | None = setting(
        None, "directory of train.jsonl and test.jsonl; default: $GSM8K_DIR, else the hub"
    )
    hub_name: str = setting(GSM8K_HUB, "hub dataset to use when there is no path")
    instruction: str = setting(GSM8K_INSTRUCTION, "appended to each question")
    demonstrations: bool = setting(True, "also make SFT rows from its solutions")
    limit: int | None = setting(None, "first rows of each file; null = all", ge=1)


_HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)?")

MATH_HUB = "DigitalLearningGmbH/MATH-lighteval"
MATH_ROWS = {"train": 7500, "test": 5000}
# verl's, for MATH (examples/data_preprocess/math_dataset.py).
BOXED_INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
MathType = Literal[
    "Algebra",
    "Counting & Probability",
    "Geometry",
    "Intermediate Algebra",
    "Number Theory",
    "Prealgebra",
    "Precalculus",
]
AIME_ROWS = 30  # of a year: two papers of fifteen
# Year -> hub dataset and the split that holds its problems.
AIME_HUBS = {2024: ("Maxwell-Jia/AIME_2024", "train"), 2025: ("math-ai/aime25", "test")}


class MathSource(Section):
    """MATH: problems with a worked solution whose last ``\\boxed{}`` is the ground truth."""

    kind: Literal["math"] = setting("math", "the MATH data set")
    path: str | None = setting(
        None,
        "folder of one train* and one test* file, or one file, with the columns"
        " problem, solution, level, type; null = the hub",
    )
    hub_name: str = setting(MATH_HUB, "hub dataset to use when there is no path")
    revision: str | None = setting(None, "commit of the hub dataset to pin")
    split: Literal["train", "test"] | None = setting(
        None, "only these rows; null = both, and of one file: train"
    )
    levels: tuple[Annotated[int, Field(ge=1, le=5)], ...] = setting(
        (), "only problems of these levels, 1 (easiest) to 5; empty = all"
    )
    types: tuple[MathType, ...] = setting(
        (), "only problems of these types, e.g. Geometry; empty = all"
    )
    instruction: str = setting(BOXED_INSTRUCTION, "appended to each problem")
    demonstrations: bool = setting(True, "also make SFT rows from its solutions")
    limit: int | None = setting(None, "first rows of each file, of those chosen; null = all", ge=1)


class AimeSource(Section):
    """AIME of one year: 30 problems whose answers are integers from 0 to 999."""

    kind: Literal["aime"] = setting("aime", "the AIME of one year")
    year: Literal[2024, 2025] = setting(
        2024, "which year's hub dataset, and the name of the rows' data source"
    )
    path: str | None = setting(
        None, "file with the columns problem and answer in any case; null = the hub"
    )
    revision: str | None = setting(None, "commit of the hub dataset to pin")
    split: Literal["train", "validation", "test"] = setting("test", "what its rows are for")
    instruction: str = setting(BOXED_INSTRUCTION, "appended to each problem")
    limit: int | None = setting(None, "first rows; null = all", ge=1)

    @property
    def hub_name(self) -> str:
        """The hub dataset to use when there is no path."""
        return AIME_HUBS[self.year][0]

    @property
    def hub_split(self) -> str:
        """Its split that holds the problems."""
        return AIME_HUBS[self.year][1]


class Columns(Section):
    """Names of the source's columns where they are not ours; null = as ours."""

    prompt: str | None = setting(None, "the question: text or messages")
    completion: str | None = setting(None, "the answer to learn: SFT")
    messages: str | None = setting(None, "a conversation, its assistant turns learnt")
    ground_truth: str | None = setting(None, "what reward functions compare to")
    data_source: str | None = setting(None, "the task's name")

    @property
    def named(self) -> dict[str, str]:
        """The names given, by ours."""
        return self.model_dump(exclude_none=True)


class FileSource(Section):
    """Files in verl, TRL prompt/completion, messages, ShareGPT or Alpaca form."""

    kind: Literal["file"] = setting("file", "your own files")
    path: str = Field(
        description="local path or fsspec URL of a .parquet, .jsonl, .json or .csv file (.gz too),"
        " of a folder of such files, or a pattern such as rows/*.jsonl: all that match when a run"
        " begins, by name; $NAME is an environment variable"
    )
    split: Literal["train", "validation", "test"] = setting("train", "what its rows are for")
    data_source: str | None = setting(None, "verl's name; null = the rows' own, else the path's")
    limit: int | None = setting(None, "first rows of each; null = all", ge=1)
    columns: Columns = setting(Columns(), "written as ours: its own")


class HubSource(Section):
    """A dataset of the Hugging Face hub, in any form that ``FileSource`` accepts."""

    kind: Literal["hub"] = setting("hub", "a data set of the hub")
    name: str = Field(description="hub dataset, as owner/name")
    config: str | None = setting(None, "configuration (subset) on the hub")
    revision: str | None = setting(None, "commit to pin")
    hub_split: str = setting("train", "split name on the hub")
    split: Literal["train", "validation", "test"] = setting("train", "what its rows are for")
    data_source: str | None = setting(None, "verl's name; null = the rows' own, else the hub's")
    limit: int | None = setting(None, "first rows; null = all", ge=1)
    columns: Columns = setting(Columns(), "written as ours: its own")

    @field_validator("name")
    @classmethod
    def _is_no_path(cls, value: str) -> str:
        if not _HUB_NAME.fullmatch(value):
            raise ValueError(
                f"{value!r} is no name of the hub, as owner/name; your own files and folders are"
                " read by a source of kind 'file'"
            )
        return value


class ArithmeticSource(Section):
    """Generated two-digit word problems, imperfect demonstrations; disjoint by operand tuple."""

    kind: Literal["arithmetic"] = setting(ARITHMETIC, "generated problems")
    train: int = setting(4096, "RL training prompts", ge=1)
    validation: int = setting(256, "validation prompts", ge=1)
    test: int = setting(512, "test prompts: held-out operand tuples", ge=1)
    test_steps: int = setting(256, "test prompts: held-out single steps", ge=1)
    demonstrations: int = setting(46080, "SFT examples", ge=1)
    steps: tuple[int, int] = setting((1, 2), "fewest and most steps of a problem, 1 to 3")
    stop_early: float = setting(
        0.60,
        "share of examples ending after step 1 if that is a product; else half of it",
        ge=0,
        le=1,
    )
    wrong_operation: float = setting(0.35, "share with a wrong step", ge=0, le=1)
    off_result: float = setting(0.08, "share with a wrong result", ge=0, le=1)
    malformed: float = setting(0.10, "share with a bad last line", ge=0, le=1)

    @field_validator("steps")
    @classmethod
    def _steps_exist(cls, value: tuple[int, int]) -> tuple[int, int]:
        if not 1 <= value[0] <= value[1] <= 3:
            raise ValueError(
                f"steps = {list(value)} is not a range within 1 to 3; give [fewest, most], "
                " e.g. [2, 3]"
            )
        return value


class ProgramsSource(Section):
    """Generated descriptions of one-line Python programs with imperfect demonstrations; disjoint by
    what the programs compute."""

    kind: Literal["programs"] = setting(PROGRAMS, "generated programming tasks")
    train: int = setting(4096, "RL training prompts", ge=1)
    validation: int = setting(256, "validation prompts: held-out programs", ge=1)
    test: int = setting(512, "test prompts: held-out programs", ge=1)
    demonstrations: int = setting(23040, "SFT examples", ge=1)
    tests: int = setting(2, "inputs that a program is tried with", ge=1, le=100)
    forgotten_step: float = setting(
        0.60,
        "share of examples without step 2 if step 1 multiplies or divides; else half of it",
        ge=0,
        le=1,
    )
    no_parentheses: float = setting(
        0.60, "share that lacks parentheses where a sum needs them", ge=0, le=1
    )
    wrong_operation: float = setting(0.20, "share with a wrong step", ge=0, le=1)
    wrong_number: float = setting(0.05, "share with a wrong number", ge=0, le=1)
    malformed: float = setting(0.10, "share that is no Python block or prints nothing", ge=0, le=1)


class InstructionsSource(Section):
    """Generated instructions that a rule can check, with held-out words for test prompts."""

    kind: Literal["instructions"] = setting(INSTRUCTIONS, "generated, no SFT rows")
    train: int = setting(2048, "RL training prompts", ge=1)
    validation: int = setting(64, "validation prompts", ge=1)
    test: int = setting(256, "test prompts: held-out words", ge=1)


class EnvironmentSource(Section):
    """Prompts that the recipe's environment begins its episodes with, drawn by seed."""

    kind: Literal["environment"] = setting(ENVIRONMENT, "of the environment")
    train_size: int = setting(1024, "RL training prompts", ge=1)
    validation_size: int = setting(128, "validation prompts", ge=1)
    test_size: int = setting(256, "test prompts", ge=1)
    demonstrations: int = setting(0, "SFT examples, of the environment's demonstration(seed)", ge=0)
    data_source: str | None = setting(None, "null = the environment's name")


# Read from files or the hub.
ReadSource = Gsm8kSource | MathSource | AimeSource | FileSource | HubSource
GeneratedSource = ArithmeticSource | ProgramsSource | InstructionsSource | EnvironmentSource
Source = Annotated[ReadSource | GeneratedSource, Field(discriminator="kind")]


def _of(source: Any, key: str) -> Any:
    """Return a value of a source that may not be validated yet."""
    return source.get(key) if isinstance(source, Mapping) else getattr(source, key, None)


class DataSection(Section):
    """Sources and the treatment of their rows, in the order of the fields."""

    sources: tuple[Source, ...] = Field(min_length=1, description="where rows come from")
    filters: tuple[str, ...] = setting(
        (), "DuckDB SQL conditions over the prompt columns; false rows rejected"
    )
    max_prompt_tokens: int = setting(512, "tokens, chat template included", ge=1)
    over_length: Literal["drop", "error", "truncate_left", "truncate_middle", "truncate_right"] = (
        setting("drop", "longer prompts: reject, end the run, or cut words there")
    )
    deduplicate: Literal["exact", "near", "off"] = setting(
        "near",
        "training rows dropped: equal texts, near ones too, or none; default with a"
        f" source of kind {', '.join(GENERATED[:-1])} or {GENERATED[-1]}: exact",
    )
    near_duplicate_jaccard: float = setting(
        0.9,
        "Jaccard similarity (0 to 1) of word 5-grams from which rows are duplicates",
        gt=0,
        le=1,
    )
    decontaminate: bool = setting(
        True, "drop training rows that share a 13-gram with an evaluation row"
    )
    validation_fraction: float = setting(
        0.0,
        "share of training prompts kept for validation, by hash; default 0.05 where no"
        " source has validation rows",
        ge=0,
        lt=1,
    )
    test_fraction: float = setting(
        0.0,
        "share of training prompts kept for the test, by hash, where no file holds test rows",
        ge=0,
        lt=1,
    )
    max_reject_fraction: float = setting(
        0.1, "share of rejected rows above which the stage fails", ge=0, le=1
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_sources(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        sources = values.get("sources")
        sources = sources if isinstance(sources, list | tuple) else []
        if "deduplicate" not in values and any(_of(s, "kind") in GENERATED for s in sources):
            values = {**values, "deduplicate": "exact"}
        if values.get("deduplicate") is False:  # what YAML makes of a bare off
            values = {**values, "deduplicate": "off"}
        validated = any(
            _of(s, "kind") in GENERATED or _of(s, "split") == "validation" for s in sources
        )
        if "validation_fraction" not in values and sources and not validated:
            values = {**values, "validation_fraction": VALIDATION_FRACTION}
        return values

    @rule
    def _something_is_left_to_train_on(self) -> Iterator[str]:
        if self.validation_fraction + self.test_fraction >= 1:
            yield (
                f"validation_fraction = {self.validation_fraction:g} and test_fraction ="
                f" {self.test_fraction:g} leave no training prompts; lower one"
            )

    @rule
    def _generated_text_is_templated(self) -> Iterator[str]:
        generated = any(source.kind in GENERATED for source in self.sources)
        if generated and self.deduplicate == "near":
            yield (
                "deduplicate='near' would merge generated problems, which differ in numbers only;"
                " set data.deduplicate to 'exact'"
            )
