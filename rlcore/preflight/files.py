"""The data files that a recipe names, looked at before the run."""

from dataclasses import replace

from rlcore.data.filters import check_conditions, worded_rejects
from rlcore.data.peek import FIRST_ROWS, Peek, peek
from rlcore.data.screen import check_rejects
from rlcore.data.sources import count_rows
from rlcore.data.split import NO_DEMONSTRATIONS, no_prompts
from rlcore.preflight.data_size import DataSize, data_size, size_of_rows, total_size
from rlcore.reward_model.files import Rankings, preference_file, read_preferences
from rlcore.rl.ptx import ptx_texts
from schemas.data import DataSection
from schemas.errors import UserError
from schemas.generated import GeneratedSource
from schemas.recipe import Recipe
from schemas.reward_model import RewardModelSection, SampledPreferences

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
    if recipe.reward_model is not None:
        size = replace(size, preferences=_preferences(recipe, recipe.reward_model))
    ptx = recipe.rl.ptx
    if ptx is not None and ptx.path is not None:
        ptx_texts(ptx.path, FIRST_ROWS)
    return size


def _sizes_of_files(data: DataSection, first: int | None) -> dict[int, DataSize]:
    sizes = {}
    for index, source in enumerate(data.sources):
        if isinstance(source, GeneratedSource):
            continue
        looked = peek(source, f"data.sources[{index}]", first=first)
        peeks = [_without_long_prompts(one, data) for one in looked]
        for one in peeks:
            _check_rejects(one, data, f"data.sources[{index}]")
        if peeks:
            sizes[index] = total_size(
                size_of_rows(
                    p.split,
                    p.prompts,
                    p.demonstrations,
                    data.validation_fraction,
                    data.test_fraction,
                )
                for p in peeks
            )
    return sizes


def _without_long_prompts(peeked: Peek, data: DataSection) -> Peek:
    """Return ``peeked`` with the rows rejected that surely are too long."""
    rows, long = worded_rejects(peeked.rows, data)
    return replace(peeked, rows=rows, rejects=[*peeked.rejects, *long])


def _check_rejects(peeked: Peek, data: DataSection, where: str) -> None:
    """Refuse a file of which the first rows alone are more rejects than the run allows of all."""
    if peeked.rejects and peeked.count is not None:
        try:
            check_rejects(peeked.rejects, {peeked.rejects[0].source: peeked.count}, data)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None


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


def _preferences(recipe: Recipe, section: RewardModelSection) -> int | None:
    """Return the number of rows of their file, None where they have none or it is not counted."""
    preferences = section.preferences
    if isinstance(preferences, SampledPreferences):
        return None
    path, setting = preference_file(preferences)
    most = min(preferences.limit or FIRST_PREFERENCES, FIRST_PREFERENCES)
    first = preferences.model_copy(update={"limit": most})
    found = read_preferences(first, recipe.data)
    if not found.total:
        raise UserError(f"{setting} = '{path}' holds no rows; give a file with at least one")
    _check_preferences(found, section.max_tokens, f"{setting} = '{path}'")
    count = count_rows(path, setting=setting)
    return count if count is None else min(count, preferences.limit or count)


def _check_preferences(found: Rankings, max_tokens: int, where: str) -> None:
    """Refuse a file that leaves a split without two responses to compare; those with more words
    than ``max_tokens`` are too long in any tokenizer."""
    ranks: dict[str, dict[str, set[int]]] = {"train": {}, "validation": {}}
    for row in found.rows:
        if len(row.response.split()) <= max_tokens:
            ranks[row.split].setdefault(row.uid, set()).add(row.rank)
    for split, prompts in ranks.items():
        if not any(len(of_prompt) > 1 for of_prompt in prompts.values()):
            reasons = "".join(f", {count} are {why}" for why, count in found.left_out.items())
            raise UserError(
                f"{where}: of {found.total} rows none gives two responses of unequal rank to a"
                f" {split} prompt within reward_model.max_tokens = {max_tokens}{reasons}; give more"
                " rows, or raise it"
            )
