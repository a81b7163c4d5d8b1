"""The whole stage on real components: equal inputs give equal bytes, bad ones give one sentence."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.data.prepare import PreparedData, prepare
from rlcore.data.read import training_texts
from rlcore.models.base import build_base_model
from rlcore.models.files import MODEL_FOLDER, model_directory
from rlcore.models.ragged import to_arrays
from rlcore.models.tokenizer import load_tokenizer
from schemas.data import ArithmeticSource, DataSection, FileSource, MathSource, ProgramsSource
from schemas.errors import UserError
from schemas.model import FromScratch, ModelSection
from schemas.tables import TABLES
from tests.rlcore.data.row_files import MATH_ROWS, write

SCRATCH = ModelSection(
    from_scratch=FromScratch(
        hidden_size=32, num_layers=1, num_heads=1, num_kv_heads=1, vocab_size=320
    ),
    dtype="float32",
    max_tokens=512,
)
SMALL = ArithmeticSource(train=96, validation=24, test=24, test_steps=24, demonstrations=300)


def arithmetic(**fields: Any) -> DataSection:
    return DataSection(sources=(SMALL,), deduplicate="exact", **fields)


def run(
    data: DataSection,
    workdir: Path,
    model: ModelSection = SCRATCH,
    seed: int = 0,
    sft_max_tokens: int | None = 128,
) -> PreparedData:
    target = workdir / MODEL_FOLDER
    build_base_model(model, target, texts=training_texts(data, seed), seed=seed)
    return prepare(data, tokenizer=load_tokenizer(target), seed=seed, sft_max_tokens=sft_max_tokens)


def digest(prepared: PreparedData, workdir: Path) -> str:
    parts = [frame.serialize(format="json") for frame in prepared.tables.values()]
    files = sorted(model_directory(workdir).iterdir())
    parts += [file.name + hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedData, Path]:
    workdir = tmp_path_factory.mktemp("quick")
    return run(arithmetic(), workdir), workdir


def rows_file(folder: Path, name: str, rows: Iterable[dict]) -> FileSource:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return FileSource(path=str(path), split="test" if name == "test" else "train")


def sums(numbers: Iterable[int], text: str = "What is {n} plus one?") -> list[dict]:
    return [
        {"prompt": text.format(n=n), "completion": f"#### {n + 1}", "ground_truth": str(n + 1)}
        for n in numbers
    ]


def files(folder: Path, train: list[dict], test: list[dict], **fields: Any) -> DataSection:
    folder.mkdir(parents=True, exist_ok=True)
    sources = (rows_file(folder, "train", train), rows_file(folder, "test", test))
    given = {"sources": sources, "deduplicate": "exact", "validation_fraction": 0.0}
    return DataSection.model_validate(given | fields)


def test_tables_keep_their_contracts_and_counts(quick: tuple[PreparedData, Path]) -> None:
    prepared, _ = quick
    assert set(prepared.tables) == {"prompts", "demonstrations", "rejects"}
    for name, frame in prepared.tables.items():
        TABLES[name].validate(frame)
    counts = dict(prepared.tables["prompts"].group_by("subset").len().iter_rows())
    assert counts == {"train": 96, "validation": 24, "test": 24, "test_steps": 24}
    assert prepared.tables["demonstrations"].filter(pl.col("split") == "train").height == 300
    assert prepared.tables["rejects"].is_empty()
    json.dumps(prepared.summary)


def test_generated_programs_keep_their_tests_and_every_row(tmp_path: Path) -> None:
    """Taken for contamination of one another, none would be left to train on."""
    source = ProgramsSource(train=96, validation=24, test=24, demonstrations=300)
    prepared = run(DataSection(sources=(source,), deduplicate="exact"), tmp_path)
    prompts = prepared.tables["prompts"]
    TABLES["prompts"].validate(prompts)
    counts = dict(prompts.group_by("split").len().iter_rows())
    assert counts == {"train": 96, "validation": 24, "test": 24}
    assert set(prompts["reward_style"]) == {"code"}
    assert all(len(json.loads(text)["inputs"]) == 2 for text in prompts["ground_truth"])
    assert prepared.tables["rejects"].is_empty()


def test_equal_seeds_give_equal_bytes_and_others_other_rows(
    quick: tuple[PreparedData, Path], tmp_path: Path
) -> None:
    """Resume and caching compare digests: a stage that varies is never a cache hit downstream."""
    prepared, workdir = quick
    again = run(arithmetic(), tmp_path / "again")
    assert digest(again, tmp_path / "again") == digest(prepared, workdir)
    other = run(arithmetic(), tmp_path / "other", seed=1)
    for name in ("prompts", "demonstrations"):
        assert not other.tables[name]["uid"].equals(prepared.tables[name]["uid"])
    assert digest(other, tmp_path / "other") != digest(prepared, workdir)


def test_no_problem_or_held_out_step_crosses_the_splits(quick: tuple[PreparedData, Path]) -> None:
    """Accuracy on problems that were trained on is no accuracy."""
    prompts = quick[0].tables["prompts"]
    numbers = {
        subset: {
            (info["kind"], tuple(sorted(info["numbers"][:2])), tuple(info["numbers"][2:]))
            for info in map(json.loads, part["extra_info"])
        }
        for (subset,), part in prompts.group_by("subset")
    }
    assert not numbers["train"] & (numbers["validation"] | numbers["test"] | numbers["test_steps"])
    questions = {
        split: {m[0]["content"] for m in frame["messages"]}
        for (split,), frame in quick[0].tables["demonstrations"].group_by("split")
    }
    tested = prompts.filter(pl.col("split") == "test")["prompt"].to_list()
    assert not questions["train"] & {prompt[0]["content"] for prompt in tested}


def test_demonstrations_are_what_a_rollout_would_be(quick: tuple[PreparedData, Path]) -> None:
    """SFT on other tokens than those sampled teaches a model that the sampler never visits."""
    prepared, workdir = quick
    tokenizer = load_tokenizer(model_directory(workdir))
    frame = prepared.tables["demonstrations"]
    for messages, ids, mask in zip(
        frame["messages"], to_arrays(frame["token_ids"]), to_arrays(frame["loss_mask"]), strict=True
    ):
        prompt = tokenizer.apply_chat_template(
            [messages[0]], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert ids[: len(prompt)].tolist() == prompt
        assert not mask[: len(prompt)].any()
        assert mask[len(prompt) :].all()
        assert ids[-1] == tokenizer.eos_token_id, "the model would never learn to stop"
        assert tokenizer.decode(ids[len(prompt) : -1]) == messages[1]["content"]


def test_an_example_costs_few_tokens(quick: tuple[PreparedData, Path]) -> None:
    """The quick start's time is made of these tokens."""
    tables = quick[0].tables
    assert tables["prompts"]["prompt_ids"].list.len().mean() < 25  # pyright: ignore
    assert tables["demonstrations"]["token_ids"].list.len().mean() < 50  # pyright: ignore


def test_contaminated_rows_lose_prompt_and_demonstration(tmp_path: Path) -> None:
    data = files(tmp_path, sums(range(20)), sums([3, 100]))
    prepared = run(data, tmp_path / "w")
    rejects = prepared.tables["rejects"]
    assert set(rejects["reason"]) == {"contaminated"}
    assert set(rejects["row"]) == {3}
    assert prepared.tables["prompts"].filter(pl.col("split") == "train").height == 19
    leaked = "What is 3 plus one?"
    assert leaked not in [m[0]["content"] for m in prepared.tables["demonstrations"]["messages"]]
    kept = run(data.model_copy(update={"decontaminate": False}), tmp_path / "v")
    assert kept.tables["rejects"].is_empty()


def test_duplicates_are_rejected_and_another_solution_is_none(tmp_path: Path) -> None:
    train = sums(range(30))
    train += [train[4], {**train[5], "completion": "6, so #### 6"}]
    prepared = run(files(tmp_path, train, sums([100])), tmp_path / "w")
    counts = dict(prepared.tables["prompts"].group_by("split").len().iter_rows())
    assert counts == {"train": 30, "test": 1}
    assert prepared.tables["demonstrations"].height >= 31
    assert set(prepared.tables["rejects"]["row"]) == {30, 31}
    assert set(prepared.tables["rejects"]["reason"]) == {"duplicate"}


def test_a_row_that_is_rejected_twice_is_counted_once(tmp_path: Path) -> None:
    """A repeated row is dropped as a prompt and as a demonstration."""
    train = sums(range(30))
    prepared = run(files(tmp_path, [*train, train[4], train[5]], sums([100])), tmp_path / "w")
    assert prepared.tables["rejects"].height == 4
    assert prepared.summary["rejects"] == {f"{tmp_path}/train.jsonl/duplicate": 2}
    assert prepared.sentence().endswith("; 2 rows rejected (2 duplicate)")


def test_validation_rows_are_chosen_by_content(tmp_path: Path) -> None:
    """Rows that change side when data is added leak from validation into training."""

    def validation(numbers: range, name: str) -> set[str]:
        data = files(tmp_path / name, sums(numbers), sums([1000]), validation_fraction=0.3)
        tables = run(data, tmp_path / name / "w").tables
        held = {
            split: {row[0]["content"] for row in part["prompt"]}
            for (split,), part in tables["prompts"].group_by("split")
        }
        taught = tables["demonstrations"].filter(pl.col("split") == "train")["messages"]
        assert not held["validation"] & {m[0]["content"] for m in taught}
        return held["validation"]

    small, large = validation(range(100), "a"), validation(range(200), "b")
    assert 15 <= len(small) <= 45
    assert small == {text for text in large if int(text.split()[2]) < 100}


def test_sql_filters_reject_by_name(tmp_path: Path) -> None:
    data = files(tmp_path, sums(range(20)), sums([100]), filters=("ground_truth <> '7'",))
    rejects = run(data, tmp_path / "w").tables["rejects"]
    assert rejects.select("row", "reason").rows() == [(6, "filter")]
    assert "data.filters: ground_truth <> '7'" in rejects["detail"][0]


@pytest.mark.parametrize("policy", ["truncate_left", "truncate_middle", "truncate_right"])
def test_truncation_cuts_the_text_and_keeps_the_turns(tmp_path: Path, policy: str) -> None:
    """A prompt cut in its token ids loses the markers that make the model answer."""
    story = " ".join(f"w{n}" for n in range(100))
    train = [*sums(range(20)), *sums([50], story + " {n}")]
    data = files(tmp_path, train, sums([100]), over_length=policy, max_prompt_tokens=60)
    prepared = run(data, tmp_path / "w")
    tokenizer = load_tokenizer(model_directory(tmp_path / "w"))
    row = max(prepared.tables["prompts"].rows(named=True), key=lambda r: len(r["prompt_ids"]))
    text = row["prompt"][0]["content"]
    assert 50 <= len(row["prompt_ids"]) <= 60
    assert tokenizer.apply_chat_template(
        row["prompt"], add_generation_prompt=True, tokenize=True, return_dict=False
    ) == list(row["prompt_ids"])
    assert text.startswith("w0") == (policy != "truncate_left")
    assert text.endswith("50") == (policy != "truncate_right")


LONG = " ".join(["long"] * 200) + " {n}"


@pytest.mark.parametrize(
    ("train", "fields", "sentence"),
    [
        (
            sums(range(4)) + sums([9], LONG),
            {"max_prompt_tokens": 60},
            r"train\.jsonl: 1 of 5 rows rejected, over data\.max_reject_fraction = 0\.1; .*"
            r"'over_length', as row 4: .*data\.max_prompt_tokens = 60; raise"
            r" data\.max_prompt_tokens or set data\.over_length .*raise"
            r" data\.max_reject_fraction",
        ),
        (
            sums(range(20)) + sums([9], LONG),
            {"max_prompt_tokens": 60, "over_length": "error"},
            r"train\.jsonl row 20: its prompt has \d+ tokens, over data\.max_prompt_tokens = 60;",
        ),
        (
            sums(range(4)) * 2,
            {},
            r"4 of 8 rows rejected, .*'duplicate', as row 4: .*set data\.deduplicate to 'off'",
        ),
        (
            sums(range(4)),
            {"filters": ("1 = 0",), "max_reject_fraction": 1.0},
            r"data: none of 4 train prompts is left after preparation; loosen data\.filters",
        ),
        (
            sums(range(4)),
            {"filters": ("grounding = 1",)},
            r"data\.filters.*grounding",
        ),
        (
            [{"prompt": f"{n}?", "ground_truth": "1"} for n in range(4)],
            {},
            r"data\.sources give no training demonstrations, which SFT needs; .*sft\.enabled",
        ),
        (
            [{**row, "completion": LONG} for row in sums(range(4))],
            {},
            r"4 of 4 rows rejected.*sft\.max_tokens = 128.*raise sft\.max_tokens",
        ),
        (
            [{"question": "1?", "reply": "2"}],
            {},
            r"train\.jsonl has columns question, reply, which are of no accepted form",
        ),
    ],
)
def test_bad_data_is_one_sentence_with_the_remedy(
    tmp_path: Path, train: list[dict], fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        run(files(tmp_path, train, sums([100]), **fields), tmp_path / "w")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_too_many_problems_are_refused_by_name(tmp_path: Path) -> None:
    source = SMALL.model_copy(update={"test": 10**6})
    with pytest.raises(UserError, match=r"test = 1000000, and only \d+ .*exist; lower test"):
        run(DataSection(sources=(source,), deduplicate="exact"), tmp_path)


def test_without_sft_no_demonstrations_are_needed(tmp_path: Path) -> None:
    train = [{"prompt": f"What is {n}?", "ground_truth": str(n)} for n in range(9)]
    test = [{"prompt": "What is 100?", "ground_truth": "100"}]
    tables = run(files(tmp_path, train, test), tmp_path / "w", sft_max_tokens=None).tables
    TABLES["demonstrations"].validate(tables["demonstrations"])
    assert tables["demonstrations"].is_empty()


def test_a_row_of_math_without_a_boxed_answer_is_rejected_and_counted(tmp_path: Path) -> None:
    bare = {**MATH_ROWS[0], "solution": "It is 0."}
    write(tmp_path / "train.jsonl", [*MATH_ROWS, bare])
    write(tmp_path / "test.jsonl", MATH_ROWS[:3])
    source = MathSource(path=str(tmp_path))
    data = DataSection(sources=(source,), deduplicate="off", decontaminate=False)
    prepared = run(data, tmp_path / "work", sft_max_tokens=None)
    (reject,) = prepared.tables["rejects"].to_dicts()
    assert (reject["row"], reject["reason"]) == (10, "no_final_answer")
    assert json.loads(reject["content"]) == bare
    assert prepared.summary["rejects"] == {f"{tmp_path}/train.jsonl/no_final_answer": 1}
    assert prepared.tables["prompts"].height == 13
    assert prepared.tables["prompts"]["data_source"].unique().to_list() == [
        "DigitalLearningGmbH/MATH-lighteval"
    ]


def test_demonstrations_are_asked_where_nothing_else_can_be(tmp_path: Path) -> None:
    """Rows of prompt and completion, or messages, and a reward that needs no ground truth."""
    rows = [{"prompt": f"Name {n}?", "completion": f"It is {n}."} for n in range(8)]
    prepared = run(files(tmp_path, rows, sums([90])), tmp_path)
    asked = prepared.tables["prompts"].filter(pl.col("split") == "train")
    assert asked["reward_style"].to_list() == ["model"] * 8
    assert prepared.tables["demonstrations"].height == 8
    mixed = run(files(tmp_path / "mixed", rows + sums([1, 2]), sums([90])), tmp_path / "mixed")
    trained = mixed.tables["prompts"].filter(pl.col("split") == "train")
    assert trained["ground_truth"].to_list() == ["2", "3"], "beside rows with a truth they are not"


def test_a_share_of_the_training_rows_is_the_test(tmp_path: Path) -> None:
    """Test rows teach nothing: neither as prompts nor as demonstrations, nor do their copies."""
    train = rows_file(tmp_path, "train", sums([*range(40), 3, 5, 7]))
    given = {"sources": (train,), "deduplicate": "off", "validation_fraction": 0.2}
    prepared = run(DataSection.model_validate({**given, "test_fraction": 0.3}), tmp_path)
    prompts = prepared.tables["prompts"]
    asked = {
        split: set(prompts.filter(pl.col("split") == split)["ground_truth"])
        for split in ("train", "validation", "test")
    }
    assert all(len(truths) > 2 for truths in asked.values())
    assert not asked["test"] & asked["train"]
    learnt = prepared.tables["demonstrations"]
    said = {chat[-1]["content"].removeprefix("#### ") for chat in learnt["messages"]}
    assert not asked["test"] & said
    assert sorted(asked["train"] | asked["validation"], key=int) == sorted(said, key=int)
    without = run(DataSection.model_validate({**given, "test_fraction": 0.1}), tmp_path)
    held = without.tables["prompts"].filter(pl.col("split") == "validation")
    assert set(held["ground_truth"]) == asked["validation"], "moved by another split's share"


def test_of_ten_rows_one_is_for_validation(tmp_path: Path) -> None:
    data = files(tmp_path, sums(range(10)), sums([90]), validation_fraction=0.05)
    prepared = run(data, tmp_path)
    for name in ("prompts", "demonstrations"):
        table = prepared.tables[name]
        assert table.filter(pl.col("split") == "validation").height == 1
