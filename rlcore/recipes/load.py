"""From a YAML file and dotted overrides to a validated ``Recipe``; each error in one sentence."""

import glob
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlcore.recipes.errors import sentences
from rlcore.recipes.redaction import check_recipe
from rlcore.recipes.text import LONGEST, leaves, read_yaml
from rlcore.store.limits import read_text
from schemas.errors import UserError, did_you_mean
from schemas.names import by_workers, is_file, split_function
from schemas.presets import DISPLACES, overlay
from schemas.recipe import Recipe


def load_recipe(
    name: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    directory: Path,
    recorded: bool = False,
) -> Recipe:
    """Return the recipe ``name`` of ``directory`` (or the YAML file at the path ``name``).

    A file with ``extends: other`` holds only what differs from the recipe ``other`` of its folder;
    with ``extends: [one, two]``, the values of ``two`` override those of ``one``. A recipe without
    ``name`` is called after its file. ``overrides``
    maps dotted paths to values, e.g. ``{"rl.update.optimizer.lr": 2e-6}``; a number indexes a list.
    ``recorded``: of a run that is looked at, perhaps of another machine with other users.
    Raises UserError with a line per error: dotted path, value, rule and remedy.
    """
    tree = read_tree(name, directory)
    recipe = resolve_recipe(name, tree, overrides)  # sets the overrides in the tree
    if not recorded and (unknown := _unknown_homes(tree)):
        raise UserError("\n".join(unknown))
    return recipe


def resolve_recipe(
    name: str, tree: dict[str, Any], overrides: Mapping[str, Any] | None = None
) -> Recipe:
    """Return the recipe that ``tree`` holds once the dotted ``overrides`` are set in it.

    ``name`` is its name in errors. Raises UserError with a line per error: dotted path, value, rule
    and remedy.
    """
    misplaced: list[str] = []
    for path, value in (overrides or {}).items():
        try:
            set_key(tree, path, value)
        except UserError as error:
            misplaced.append(str(error))
    check_recipe(name, tree)
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        raise UserError("\n".join([*misplaced, *sentences(name, error)])) from None
    if misplaced:
        raise UserError("\n".join(misplaced))
    return recipe


def recipe_names(directory: Path) -> list[str]:
    """Return the sorted names of recipes in ``directory``, without files like ``_base.yaml``."""
    return sorted(path.stem for path in directory.glob("[!_]*.yaml"))


def sampling_code(recipe: Recipe) -> list[str]:
    """Return what a stage that samples and scores imports as 'package.module:name': rewards and
    the engine, which draws by its own random numbers."""
    names = [f.name for f in recipe.reward.functions if by_workers(f.name)]
    return [name for name in (*names, recipe.hardware.rollout.engine) if ":" in name]


def user_functions(recipe: Recipe) -> list[str]:
    """Return what the RL stage imports as 'package.module:name': also estimator and loss."""
    algorithm = recipe.rl.algorithm
    learnt_by = [name for name in (algorithm.advantage, algorithm.policy_loss) if ":" in name]
    return [*sampling_code(recipe), *learnt_by]


def recipe_digest(recipe: Recipe) -> str:
    """Return the sha256 of the resolved recipe's canonical JSON."""
    text = json.dumps(recipe.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def with_learner(recipe: Recipe, **changes: Any) -> Recipe:
    """Return ``recipe`` with ``changes`` in ``hardware.learner``, which are not validated."""
    learner = recipe.hardware.learner.model_copy(update=changes)
    hardware = recipe.hardware.model_copy(update={"learner": learner})
    return recipe.model_copy(update={"hardware": hardware})


def parse_override(text: str) -> tuple[str, Any]:
    """Split ``"rl.iterations=5"`` into path and value; the value is read as YAML.

    Raises UserError when there is no ``=``, or the value is not YAML.
    """
    path, separator, value = text.partition("=")
    if not separator or not path:
        raise UserError(f"override {text!r} is not of the form path=value, e.g. rl.iterations=5")
    where = f"override {path.strip()} = {value!r}"
    return path.strip(), read_yaml(value, where, "close its brackets and quotes")


def read_tree(
    name: str,
    directory: Path,
    own: Callable[[Path, dict[str, Any]], dict[str, Any]] = lambda path, tree: tree,
) -> dict[str, Any]:
    """Return what the file of recipe ``name`` and those it extends set, before any validation.

    ``own`` is given each file's own tree, base first, and returns what replaces it. Raises
    UserError as ``load_recipe`` does.
    """
    is_path = name.endswith((".yaml", ".yml"))
    path = Path(name) if is_path else directory / f"{name}.yaml"
    if not path.is_file():
        if is_path:
            raise UserError(f"recipe file '{name}' does not exist; give the path of a YAML file")
        names = recipe_names(directory)
        raise UserError(
            f"recipe '{name}' is not one of {', '.join(names)}{did_you_mean(name, names)};"
            " give one of these names or the path of a YAML file"
        )

    def read(path: Path, seen: tuple[Path, ...], *, anchored: bool) -> dict[str, Any]:
        tree = read_yaml(read_text(path, at_most=LONGEST), f"recipe file '{path}'")
        if not isinstance(tree, dict):
            held = "nothing" if tree is None else type(tree).__name__
            rule = f"holds {held}, not sections; write name, model, ..."
            raise UserError(f"recipe file '{path}' {rule}")
        merged: dict[str, Any] = {}
        seen = (*seen, path.resolve())
        for base in _names(tree.pop("extends", []), path):
            file = _file_of(base, path, directory)
            if file.resolve() in seen:
                rule = "leads back to itself; name another recipe, or leave it out"
                raise UserError(f"recipe file '{path}' extends '{base}', which {rule}")
            is_users = file.parent.resolve() != directory.resolve()
            merged = overlay(merged, read(file, seen, anchored=is_users))
        if anchored:
            _anchor(tree, path.parent)
        if len(seen) == 1:  # a recipe is not called after the one that it extends
            tree.setdefault("name", re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-"))
        return overlay(merged, own(path, tree))

    return read(path, (), anchored=is_path)


def _names(bases: Any, path: Path) -> list[str]:
    """Return what the file ``path`` extends, as a list of names."""
    names = [bases] if isinstance(bases, str) else bases
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"recipe file '{path}': extends = {bases!r} is neither the name of a recipe nor a list"
            " of names; name recipes, or leave extends out"
        )
    return [name.removesuffix(".yaml") for name in names]


def _file_of(base: str, path: Path, directory: Path) -> Path:
    """Return the file of the recipe ``base`` that ``path`` extends: in its own folder, else in
    ``directory``. Raises UserError where it is in neither."""
    for folder in (path.parent, directory):
        if (file := folder / f"{base}.yaml").is_file():
            return file
    names = recipe_names(directory)
    raise UserError(
        f"recipe file '{path}' extends '{base}', and there is no {base}.yaml in '{path.parent}' nor"
        f" among {', '.join(names)}{did_you_mean(base, names)}; name a recipe of one of the two"
    )


# Keys of a recipe, * being any name or index, that hold the path of a file, a model's directory or
# name, and a user's code.
_FILES = (
    *("data.sources.*.path", "preference.data.path", "reward_model.preferences.path"),
    "rl.ptx.path",
)
_MODELS = ("model.path", "reward_model.base", "reward_models.*.path")
_CODE = (
    *("reward.functions.*.name", "environment.name", "hardware.rollout.engine"),
    *("reward_model.preferences.ranked_by", "rl.algorithm.advantage", "rl.algorithm.policy_loss"),
)


def _anchor(tree: dict[str, Any], folder: Path) -> None:
    """Make the relative paths that a recipe file sets those of files in its ``folder``.

    A path that exists only where the command was started stays, and so does a model that is no
    directory in ``folder``: it may be one of the hub.
    """
    for key, given in list(leaves(tree)):
        place = _place(key)
        if place == "environment.command" and isinstance(given, list):
            for index, word in enumerate(given):
                if isinstance(word, str) and _is_file_beside(word, folder):
                    given[index] = str(folder / word)
        elif isinstance(given, str) and _is_relative(given):
            is_theirs = (
                (place in _FILES and not _only_here(given, folder))
                or (place in _CODE and _is_file_beside(split_function(given)[0], folder))
                or (place in _MODELS and (folder / given).is_dir())
            )
            if is_theirs:
                set_key(tree, key, str(folder / given))


def _unknown_homes(tree: dict[str, Any]) -> list[str]:
    """Return an error for each path below the home of a user that there is not."""
    return [
        f"{key} = '{value}' names the home of a user that this machine does not have; write ~/ for"
        " your own, or the whole path"
        for key, value in leaves(tree)
        if isinstance(value, str) and value.startswith("~") and os.path.expanduser(value) == value
        if _place(key) in {"store", *_FILES, *_MODELS, *_CODE}
    ]


def _place(key: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)|(?<=^reward_models\.)[^.]+(?=\.)", "*", key)


def _is_file_beside(file: str, folder: Path) -> bool:
    return is_file(file) and _is_relative(file) and not _only_here(file, folder)


def _is_relative(path: str) -> bool:
    return "://" not in path and not path.startswith(("/", "~", "$"))


def _only_here(path: str, folder: Path) -> bool:
    return _is_there(Path(path)) and not _is_there(folder / path)


def _is_there(path: Path) -> bool:
    """Return whether there is such a file, or one that the pattern matches."""
    return path.exists() or bool(glob.glob(str(path), recursive=True))


def set_key(tree: Any, path: str, value: Any) -> None:
    """Assign ``value`` at the dotted ``path``, creating missing sections."""
    *parents, last = path.split(".")
    node = tree
    for depth, part in enumerate(parents):
        here = ".".join(parents[: depth + 1])
        if isinstance(node, list):
            node = node[_index(node, part, path)]
        else:
            if node.get(part) is None:
                node[part] = {}
            node = node[part]
        if not isinstance(node, dict | list):
            raise UserError(
                f"override '{path}': '{here}' is the value {node!r}, not a section;"
                f" override '{here}' itself"
            )
    if isinstance(node, list):
        node[_index(node, last, path)] = value
    else:
        node.pop(DISPLACES.get(last), None)
        node[last] = value


def _index(items: list[Any], part: str, path: str) -> int:
    if not part.isdigit() or int(part) >= len(items):
        raise UserError(
            f"override '{path}': '{part}' must be an index from 0 to {len(items) - 1},"
            " since the recipe has a list there"
        )
    return int(part)
