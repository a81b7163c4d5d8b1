"""The data of a recipe prepared once before the run, so that nothing ends in prepare_data."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from rlcore.data.prepare import PreparedData, prepare_for
from rlcore.data.read import training_texts
from rlcore.data.sources import count_rows, source_files
from rlcore.models.base import base_tokenizer
from rlcore.models.files import local_directory
from rlcore.models.tokenizer import MINIMAL_TEMPLATE, train_tokenizer
from rlcore.plan.functions import call_functions
from rlcore.rewards.truths import Truth, check_covered, check_truths
from schemas.data import DataSection, EnvironmentSource, FileSource, GeneratedSource, Source
from schemas.errors import UserError
from schemas.names import by_workers
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

REHEARSED_ROWS = 16_384  # of all files together; some seconds
FIRST_ROWS = 4096  # of a dataset, among which rows are looked for that functions are called on
FEW = 64  # rows of a generated source that are tried, as a sample
_SHOWS_ALL = MINIMAL_TEMPLATE.replace("m.content", "(m.reasoning_content or '') + m.content")
_UNLIMITED = 10**9  # tokens, where the model's tokenizer is not at hand


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """``prepared``: what prepare_data would make. ``complete``: of all rows, not of the first
    ones of each file. ``doubts``: of the reward functions, a sentence each."""

    prepared: PreparedData[pl.DataFrame]
    complete: bool
    doubts: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield what became of the rows, and how many prompts repeat another's question."""
        yield f"{'' if self.complete else 'of the first rows: '}{self.prepared.sentence()}"
        prompts = self.prepared.tables["prompts"]
        for split in ("train", "validation", "test"):
            rows = prompts.filter(pl.col("split") == split)
            distinct = rows["prompt"].n_unique()
            if distinct < rows.height:
                yield (
                    f"{rows.height:,} {split} prompts ask {distinct:,} questions:"
                    f" {rows.height - distinct:,} repeat one"
                )


def rehearse(recipe: Recipe, *, trains: bool = True, call_judges: bool = False) -> Rehearsal | None:
    """Prepare the files of ``recipe`` in memory, and call its reward functions once on some rows;
    None where they are not at hand: of the hub, of an environment, or all generated and scored by
    our functions.

    Of large files the first rows are prepared, all rows where those would end the run. Raises
    UserError as prepare_data and ``call_functions`` do, for prompts that the reward functions
    cannot score, and, unless nothing ``trains``, for fewer training prompts than an iteration
    takes.
    """
    files = at_hand(recipe)
    if files is None:
        return None
    own = any(":" in f.name and by_workers(f.name) for f in recipe.reward.functions)
    if not files and not own:
        return None
    most = max(1, REHEARSED_ROWS // max(1, len(files)))
    counts = [count_rows(file, setting="data.sources") for file in files]
    all_fit = all(count is not None and count <= most for count in counts)
    try:
        found = _rehearsed(recipe, None if all_fit else most, trains)
    except UserError:
        if all_fit:
            raise
        found = _rehearsed(recipe, None, trains)  # the first rows may be unlike the others
    tables = [found.prepared.tables[name] for name in ("prompts", "demonstrations")]
    return replace(found, doubts=tuple(call_functions(recipe, *tables, call_judges=call_judges)))


def at_hand(recipe: Recipe) -> list[str] | None:
    """Return the files of the recipe's sources; None where rows are of the hub or an environment.

    Raises UserError as ``source_files`` does.
    """
    files: list[str] = []
    for index, source in enumerate(recipe.data.sources):
        if isinstance(source, EnvironmentSource):
            return None
        if not isinstance(source, GeneratedSource):
            found = source_files(source, f"data.sources[{index}]")
            if not found:
                return None
            files += found
    return files


def check_dataset(
    recipe: Recipe, prompts: pl.LazyFrame, demonstrations: pl.LazyFrame
) -> Iterator[str]:
    """Yield the doubts of ``call_functions`` on a prepared dataset, whose rows were not at hand
    before. Raises UserError as ``rehearse`` does."""
    columns = ("uid", "data_source", "reward_style", "ground_truth")
    rows = prompts.select(columns).collect().iter_rows()
    truths = (Truth(f"prompt {uid}", *values) for uid, *values in rows)
    check_truths(truths, recipe.reward.functions)
    first = [table.head(FIRST_ROWS).collect() for table in (prompts, demonstrations)]
    yield from call_functions(recipe, *first)


def _rehearsed(recipe: Recipe, most: int | None, trains: bool) -> Rehearsal:
    """Prepare at most ``most`` rows of each file, and look at what is left."""
    sources = tuple(_few(source, most) for source in recipe.data.sources)
    data = recipe.data.model_copy(update={"sources": sources})
    few = recipe.model_copy(update={"data": data})
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = _tokenizer(few, Path(scratch))
        if tokenizer is None:
            data = data.model_copy(update={"max_prompt_tokens": _UNLIMITED})
            sft = few.sft.model_copy(update={"max_tokens": _UNLIMITED})
            few = few.model_copy(update={"data": data, "sft": sft})
            tokenizer = train_tokenizer((), 512)
            tokenizer.chat_template = _SHOWS_ALL
        prepared = prepare_for(few, tokenizer)
    prompts, functions = prepared.tables["prompts"], recipe.reward.functions
    check_covered(prompts, functions)
    check_truths(_truths(prepared, recipe.data), functions)
    generated = [isinstance(source, GeneratedSource) for source in sources]
    if trains and recipe.rl.enabled and not any(generated):
        _check_iteration(prompts, recipe)
    return Rehearsal(prepared, complete=most is None and not all(generated))


def _few(source: Source, most: int | None) -> Source:
    """Return ``source`` with at most ``most`` rows of each file, or a few generated ones."""
    if isinstance(source, GeneratedSource):
        sizes = ("train", "validation", "test", "test_steps", "demonstrations")
        given = {name: getattr(source, name) for name in sizes if hasattr(source, name)}
        return source.model_copy(update={name: min(n, FEW) for name, n in given.items()})
    if most is None:
        return source
    return source.model_copy(update={"limit": min(most, source.limit or most)})


def _tokenizer(recipe: Recipe, scratch: Path) -> "ChatTokenizer | None":
    """Return the tokenizer of the recipe's model; None where only the hub may have it."""
    model = recipe.model
    if model.path is None:
        texts = training_texts(recipe.data, recipe.seed, recipe.environment)
        return base_tokenizer(model, scratch, texts=texts)
    return base_tokenizer(model, scratch, texts=()) if local_directory(model.path) else None


def _truths(prepared: PreparedData[pl.DataFrame], data: DataSection) -> Iterator[Truth]:
    named = {
        source.path: f"data.sources[{index}]: '{source.path}'"
        for index, source in enumerate(data.sources)
        if isinstance(source, FileSource)
    }
    columns = ("data_source", "reward_style", "ground_truth")
    rows = prepared.tables["prompts"].select(columns).iter_rows()
    for (file, number), values in zip(prepared.origins, rows, strict=True):
        yield Truth(f"{named.get(file, file)} row {number}", *values)


def _check_iteration(prompts: pl.DataFrame, recipe: Recipe) -> None:
    wanted, splits = recipe.rl.rollout.prompts, prompts["split"]
    left = (splits == "train").sum()
    if wanted > left:
        others = (splits == "validation").sum(), (splits == "test").sum()
        raise UserError(
            f"rl.rollout.prompts = {wanted} exceeds the {left} training prompts that data.sources"
            f" give ({others[0]} more are for validation, {others[1]} for the test), and an"
            " iteration takes no prompt twice; lower it or add data"
        )
