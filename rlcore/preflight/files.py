"""The data files that a recipe names, looked at before the run."""

from dataclasses import replace
from pathlib import Path

from rlcore.data.filters import check_conditions, worded_rejects
from rlcore.data.peek import FIRST_ROWS, Peek, peek
from rlcore.data.screen import check_rejects
from rlcore.data.sources import count_rows
from rlcore.data.split import NO_DEMONSTRATIONS, no_prompts
from rlcore.data.unshown import says_more, unshown_rejects
from rlcore.dry_run.batches import DataSize, data_size, size_of_rows, total_size
from rlcore.models.tokenizer import load_tokenizer, train_tokenizer
from rlcore.reward_model.files import preference_file, read_rankings, read_solutions
from rlcore.rl.ptx import ptx_texts
from schemas.data import DataSection
from schemas.errors import UserError
from schemas.generated import GeneratedSource
from schemas.model import ModelSection
from schemas.recipe import Recipe
from schemas.reward_model import Preferences, SampledPreferences


def check_files(recipe: Recipe, *, model: ModelSection | None = None) -> DataSize:
    """Return how many rows the recipe's sources hold, once their files have been looked at.

    ``model``: what trains on them; its chat template must show what they say.

    Of each file the first rows are read and all are counted, unless the first would refuse it;
    nothing is fetched from the hub.
    Raises ``UserError`` for a file that is missing, unreadable, of no known form or empty, for a
    filter that is no condition, and for sources that leave a split that the run needs without rows.
    """
    check_conditions(recipe.data.filters)
    size = data_size(recipe.data, _sizes_of_files(recipe.data, model, FIRST_ROWS))
    if _lacks(recipe, size):  # going by the first rows, which may be unlike the others
        size = data_size(recipe.data, _sizes_of_files(recipe.data, model, None))
    if lacking := _lacks(recipe, size):
        raise UserError(lacking)
    if recipe.reward_model is not None:
        size = replace(size, preferences=_preferences(recipe.reward_model.preferences))
    ptx = recipe.rl.ptx
    if ptx is not None and ptx.path is not None:
        ptx_texts(ptx.path, FIRST_ROWS)
    return size


def _sizes_of_files(
    data: DataSection, model: ModelSection | None, first: int | None
) -> dict[int, DataSize]:
    sizes = {}
    for index, source in enumerate(data.sources):
        if isinstance(source, GeneratedSource):
            continue
        looked = peek(source, f"data.sources[{index}]", first=first)
        peeks = [_shown(_without_long_prompts(one, data), model) for one in looked]
        for one in peeks:
            _check_rejects(one, data, f"data.sources[{index}]")
        if peeks:
            sizes[index] = total_size(
                size_of_rows(p.split, p.prompts, p.demonstrations, data.validation_fraction)
                for p in peeks
            )
    return sizes


def _without_long_prompts(peeked: Peek, data: DataSection) -> Peek:
    """Return ``peeked`` with the rows rejected that surely are too long."""
    rows, long = worded_rejects(peeked.rows, data)
    return replace(peeked, rows=rows, rejects=[*peeked.rejects, *long])


def _shown(peeked: Peek, model: ModelSection | None) -> Peek:
    """Return ``peeked`` with the rows rejected of which the model's chat template leaves out a
    part; that of a hub model is looked at when the run reads it."""
    if model is None or not any(says_more(row) for row in peeked.rows):
        return peeked
    if model.path is None:
        tokenizer = train_tokenizer([], 300)
        tokenizer.chat_template = model.chat_template or tokenizer.chat_template
    elif (directory := Path(model.path).expanduser()).is_dir():
        tokenizer = load_tokenizer(
            directory,
            name=model.path,
            trust_remote_code=model.trust_remote_code,
            chat_template=model.chat_template,
        )
    else:
        return peeked
    rows, unshown = unshown_rejects(tokenizer, peeked.rows)
    return replace(peeked, rows=rows, rejects=[*peeked.rejects, *unshown])


def _check_rejects(peeked: Peek, data: DataSection, where: str) -> None:
    """Refuse a file of which the first rows alone are more rejects than the run allows of all."""
    if peeked.rejects and peeked.count is not None:
        try:
            check_rejects(peeked.rejects, {peeked.rejects[0].source: peeked.count}, data)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None


def _lacks(recipe: Recipe, size: DataSize) -> str:
    """Return why prepare_data would refuse these numbers of rows, "" when they do not tell."""
    if size.train == 0:
        return no_prompts("train")
    if size.test is not None and not sum(size.test):
        return no_prompts("test")
    if size.validation == 0 and not recipe.data.validation_fraction:
        return no_prompts("validation")
    if recipe.sft.enabled and size.demonstrations == 0:
        return NO_DEMONSTRATIONS
    return ""


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
