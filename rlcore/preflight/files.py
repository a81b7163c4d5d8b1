"""The data files that a recipe names, looked at before the run."""

from dataclasses import replace

from rlcore.data.peek import FIRST_ROWS, peek
from rlcore.data.sources import count_rows
from rlcore.data.split import NO_DEMONSTRATIONS, no_prompts
from rlcore.dry_run.batches import DataSize, data_size, size_of_rows, total_size
from rlcore.reward_model.files import preference_file, read_rankings, read_solutions
from rlcore.rl.ptx import ptx_texts
from schemas.data import ArithmeticSource, DataSection
from schemas.errors import UserError
from schemas.recipe import Recipe
from schemas.reward_model import Preferences, SampledPreferences


def check_files(recipe: Recipe) -> DataSize:
    """Return how many rows the recipe's sources hold, once their files have been looked at.

    Of each file the first rows are read and all are counted; nothing is fetched from the hub.
    Raises ``UserError`` for a file that is missing, unreadable, of no known form or empty, and for
    sources that leave a split that the run needs without rows.
    """
    size = data_size(recipe.data, _sizes_of_files(recipe.data))
    _check_splits(recipe, size)
    if recipe.reward_model is not None:
        size = replace(size, preferences=_preferences(recipe.reward_model.preferences))
    ptx = recipe.rl.ptx
    if ptx is not None and ptx.path is not None:
        ptx_texts(ptx.path, FIRST_ROWS)
    return size


def _sizes_of_files(data: DataSection) -> dict[int, DataSize]:
    sizes = {}
    for index, source in enumerate(data.sources):
        if isinstance(source, ArithmeticSource):
            continue
        peeks = peek(source, f"data.sources[{index}]")
        if peeks:
            sizes[index] = total_size(
                size_of_rows(p.split, p.prompts, p.demonstrations, data.validation_fraction)
                for p in peeks
            )
    return sizes


def _check_splits(recipe: Recipe, size: DataSize) -> None:
    """Refuse what prepare_data would refuse, as far as the numbers of rows tell."""
    if size.train == 0:
        raise UserError(no_prompts("train"))
    if size.test is not None and not sum(size.test):
        raise UserError(no_prompts("test"))
    if size.validation == 0 and not recipe.data.validation_fraction:
        raise UserError(no_prompts("validation"))
    if recipe.sft.enabled and size.demonstrations == 0:
        raise UserError(NO_DEMONSTRATIONS)


def _preferences(preferences: Preferences) -> int | None:
    """Return the number of rows of their file, None where they have none or it is not counted."""
    if isinstance(preferences, SampledPreferences):
        return None
    path, setting = preference_file(preferences)
    most = min(preferences.limit or FIRST_ROWS, FIRST_ROWS)
    first = preferences.model_copy(update={"limit": most})
    rows = read_solutions(first) if first.kind == "gsm8k_solutions" else read_rankings(first)
    if not rows:
        raise UserError(f"{setting} = '{path}' holds no rows; give a file with at least one")
    count = count_rows(path, setting=setting)
    return count if count is None else min(count, preferences.limit or count)
