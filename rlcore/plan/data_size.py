"""How many rows the sources of a recipe hold, as far as the recipe and a look at its files tell."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlcore.data.filters import check_conditions, worded_rejects
from rlcore.data.read import FIRST_ROWS, Peek, peek
from rlcore.data.rows import check_rejects
from rlcore.data.sources import count_rows
from rlcore.data.split import NO_DEMONSTRATIONS, no_prompts
from rlcore.rl.ptx import ptx_texts
from rlcore.supervised.preference_files import (
    OF_PREFERENCE,
    OF_REWARD_MODEL,
    Rankings,
    preference_file,
    read_preferences,
)
from rlcore.supervised.preferences import encode
from schemas.data import (
    AIME_ROWS,
    GSM8K_ROWS,
    MATH_HUB,
    MATH_ROWS,
    AimeSource,
    ArithmeticSource,
    DataSection,
    EnvironmentSource,
    GeneratedSource,
    Gsm8kSource,
    InstructionsSource,
    MathSource,
    Source,
)
from schemas.errors import UserError
from schemas.recipe import Recipe
from schemas.reward_model import Preferences, SampledPreferences

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class DataSize:
    """Rows of the sources before any is rejected; None: not known before prepare_data has run.

    ``test`` has one number per source and subset, as ``evaluate.max_prompts`` caps each of them.
    ``preferences``: rows of the file that ``reward_model.preferences`` reads, ``pairs`` of that of
    ``preference.data``.
    """

    train: int | None
    validation: int | None
    test: tuple[int, ...] | None
    demonstrations: int | None
    preferences: int | None = None
    pairs: int | None = None


def data_size(data: DataSection, files: Mapping[int, DataSize] | None = None) -> DataSize:
    """Return how many rows the sources hold.

    ``files``: the sizes of sources whose files have been looked at, by the source's index; of the
    others only what the recipe alone determines is known.
    """
    known = files or {}
    return total_size(
        known.get(index) or _size_of(source, data) for index, source in enumerate(data.sources)
    )


def size_of_rows(
    split: str, prompts: int | None, demonstrations: int | None, data: DataSection
) -> DataSize:
    """Return the size of a file of one split, None where its numbers are not known; of training
    rows ``data`` says which shares are kept for validation and test."""
    fraction, test_fraction = data.validation_fraction, data.test_fraction
    if split != "train":
        test = None if prompts is None else (prompts,)
        held = prompts if split == "validation" else 0
        return DataSize(0, held, test if split == "test" else (), 0)
    held = 0 if not fraction else None if prompts is None else _share(prompts, fraction)
    if demonstrations is not None:
        demonstrations -= int(demonstrations * fraction) + int(demonstrations * test_fraction)
    if prompts is None:
        return DataSize(None, held, None if test_fraction else (), demonstrations)
    tested = _share(prompts, test_fraction)
    train = prompts - (held or 0) - tested
    return DataSize(train, held, (tested,) if test_fraction else (), demonstrations)


def _share(rows: int, fraction: float) -> int:
    """Return about how many of ``rows`` are held out: at least one, as ``data.split`` does."""
    return min(rows, max(1, int(rows * fraction))) if fraction else 0


def total_size(sizes: Iterable[DataSize]) -> DataSize:
    """Return the sum of ``sizes``; what is unknown in one is unknown in it."""
    all_of = list(sizes)
    tests = [size.test for size in all_of]
    return DataSize(
        _total(size.train for size in all_of),
        _total(size.validation for size in all_of),
        None if None in tests else tuple(n for test in tests for n in test or ()),
        _total(size.demonstrations for size in all_of),
    )


def _total(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def _size_of(source: Source, data: DataSection) -> DataSize:
    if isinstance(source, EnvironmentSource):
        sizes = source.train_size, source.validation_size, (source.test_size,)
        return DataSize(*sizes, source.demonstrations)
    if isinstance(source, GeneratedSource):
        steps = (source.test_steps,) if isinstance(source, ArithmeticSource) else ()
        solved = 0 if isinstance(source, InstructionsSource) else source.demonstrations
        return DataSize(source.train, source.validation, (source.test, *steps), solved)
    if not isinstance(source, Gsm8kSource | MathSource | AimeSource):
        return size_of_rows(source.split, source.limit, None, data)
    solved = not isinstance(source, AimeSource) and source.demonstrations
    rows = _rows_of_hub(source).items()
    counts = {split: source.limit if n is None else min(n, source.limit or n) for split, n in rows}
    return total_size(
        size_of_rows(split, n, n if solved else 0, data) for split, n in counts.items()
    )


def _rows_of_hub(source: Gsm8kSource | MathSource | AimeSource) -> Mapping[str, int | None]:
    """Return the rows of each split of a known dataset, None where it is not read whole."""
    if isinstance(source, Gsm8kSource):
        return GSM8K_ROWS
    if isinstance(source, AimeSource):
        return {source.split: None if source.path else AIME_ROWS}
    part = source.levels or source.types or source.path or source.hub_name != MATH_HUB
    splits = [source.split] if source.split else MATH_ROWS
    return {split: None if part else MATH_ROWS[split] for split in splits}


HUB = "hf://"
FIRST_PREFERENCES = 16_384  # rows of their file that are read; some seconds


def check_files(recipe: Recipe) -> DataSize:
    """Return how many rows the recipe's sources hold, once their files have been looked at.

    Of each file the first rows are read and all are counted, unless the first would refuse it;
    nothing is fetched from the hub.
    Raises ``UserError`` for a file that is missing, unreadable, of no known form or empty, for a
    filter that is no condition, and for sources that leave a split that the run needs without rows.
    """
    check_conditions(recipe.data.filters)
    size = data_size(recipe.data, _sizes_of_files(recipe.data, FIRST_ROWS))
    if _lacks(recipe, size):  # going by the first rows, which may be unlike the others
        size = data_size(recipe.data, _sizes_of_files(recipe.data, None))
    if lacking := _lacks(recipe, size):
        raise UserError(lacking)
    preferences, pairs = check_preferences(recipe)
    size = replace(size, preferences=preferences, pairs=pairs)
    ptx = recipe.rl.ptx
    if ptx is not None and ptx.path is not None:
        if ptx.max_tokens > (most := recipe.hardware.learner.pass_tokens):
            raise UserError(
                f"rl.ptx.max_tokens = {ptx.max_tokens} is over the {most} tokens of a micro-batch;"
                f" set it to at most {most}, or raise hardware.learner.micro_batch_tokens"
            )
        ptx_texts(ptx.path)  # all of them: one that has none would end the run after SFT
    return size


def check_preferences(
    recipe: Recipe, tokenizer: "ChatTokenizer | None" = None
) -> tuple[int | None, int | None]:
    """Return how many rows the files of ``reward_model.preferences`` and of ``preference.data``
    hold; None where there is none or it is not counted.

    ``tokenizer``: files of the hub are fetched and looked at, too, and the rows of all are put into
    its chat template. Raises ``UserError`` for a file that leaves nothing to compare.
    """
    preferences = pairs = None
    if (ranked := recipe.reward_model) is not None:
        preferences = _preferences(recipe, ranked.preferences, tokenizer, ranked.max_tokens)
    if (section := recipe.preference) is not None:
        most = section.max_tokens if section.drop_truncated else None
        kto = section.algorithm == "kto"
        pairs = _preferences(recipe, section.data, tokenizer, most, OF_PREFERENCE, labels=kto)
    return preferences, pairs


def _sizes_of_files(data: DataSection, first: int | None) -> dict[int, DataSize]:
    sizes = {}
    for index, source in enumerate(data.sources):
        where = f"data.sources[{index}]"
        looked = [] if isinstance(source, GeneratedSource) else peek(source, where, first=first)
        if looked:
            sizes[index] = total_size([_size_of_file(one, data, where) for one in looked])
    return sizes


def _size_of_file(peeked: Peek, data: DataSection, where: str) -> DataSize:
    """Return the size of a file without the rows that surely are too long. Raises UserError for one
    of which the first rows alone are more rejects than the run allows of all."""
    rows, long = worded_rejects(peeked.rows, data)
    peeked = replace(peeked, rows=rows, rejects=[*peeked.rejects, *long])
    if peeked.rejects and peeked.count is not None:
        try:
            check_rejects(peeked.rejects, {peeked.rejects[0].source: peeked.count}, data)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    return size_of_rows(peeked.split, peeked.prompts, peeked.demonstrations, data)


def _lacks(recipe: Recipe, size: DataSize) -> str:
    """Return why prepare_data would refuse these numbers of rows, "" when they do not tell."""
    if size.train == 0 and size.demonstrations == 0:
        return no_prompts("train")
    tested = size.test is None or sum(size.test) or recipe.data.test_fraction
    if size.train != 0 and not tested:  # else demonstrations are asked, maybe there too
        return no_prompts("test")
    if size.validation == 0 and not recipe.data.validation_fraction:
        return no_prompts("validation")
    if recipe.sft.enabled and size.demonstrations == 0:
        return NO_DEMONSTRATIONS
    return ""


def _preferences(
    recipe: Recipe,
    preferences: Preferences,
    tokenizer: "ChatTokenizer | None",
    most: int | None,
    at: str = OF_REWARD_MODEL,
    *,
    labels: bool = False,
) -> int | None:
    """Return the number of rows of their file, None where they have none or it is not counted.

    ``most``: tokens above which a response is left out; ``at``: the setting they are of, which
    with ``labels`` takes single responses.
    """
    if isinstance(preferences, SampledPreferences):
        return None
    path, setting = preference_file(preferences, at)
    if path.startswith(HUB) and tokenizer is None:
        return None
    read = min(preferences.limit or FIRST_PREFERENCES, FIRST_PREFERENCES)
    first = preferences.model_copy(update={"limit": read})
    found = read_preferences(first, recipe.data, at, labels=labels)
    if not found.total:
        raise UserError(f"{setting} = '{path}' holds no rows; give a file with at least one")
    if tokenizer is not None:
        rejected = recipe.data.max_reject_fraction
        try:
            encode(found.rows[:FIRST_ROWS], tokenizer, max_reject_fraction=rejected)
        except UserError:  # going by the first, which may be unlike the others
            encode(found.rows, tokenizer, max_reject_fraction=rejected)
    if not labels:
        _check_preferences(found, most, f"{setting} = '{path}'", at)
    count = None if path.startswith(HUB) else count_rows(path, setting=setting)
    if count is None:
        return None
    count = min(count, preferences.limit or count)
    # The plan takes a row for two responses; one with a label is one.
    return math.ceil(count * len(found.rows) / (2 * found.total)) if labels else count


def _check_preferences(found: Rankings, most: int | None, where: str, at: str) -> None:
    """Refuse a file that leaves a split without two responses to compare; those with more words
    than ``most`` are too long in any tokenizer."""
    ranks: dict[str, dict[str, set[int]]] = {"train": {}, "validation": {}}
    for row in found.rows:
        if most is None or len(row.response.split()) <= most:
            ranks[row.split].setdefault(row.uid, set()).add(row.rank)
    for split, prompts in ranks.items():
        if not any(len(of_prompt) > 1 for of_prompt in prompts.values()):
            limit = f"{at.partition('.')[0]}.max_tokens = {most}"
            reasons = "".join(f", {count} are {why}" for why, count in found.left_out.items())
            raise UserError(
                f"{where}: of {found.total} rows none gives two responses of unequal rank to a"
                f" {split} prompt{'' if most is None else f' within {limit}'}{reasons};"
                f" give more rows{'' if most is None else ', or raise it'}"
            )
