"""A call of the Python API as it is recorded below its output_dir: what it was given, so that the
same call again can continue where it stopped, and any other one is refused."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.api.configs import TrainingConfig
from rlcore.api.function_digests import Incomparable, Parts, digest_of, parts_of
from rlcore.models.files import model_files
from rlcore.results.folders import CALL
from rlcore.store.checks import file_digest
from rlcore.store.versions import code_digest
from schemas.errors import UserError
from schemas.recipe import Recipe

TRAINING = "training"  # first part of every key of such a call, and so what its lease covers
# Settings that say where and how it is computed, kept or shown.
FREE = {
    *("model_name", "output_dir", "threads", "gradient_checkpointing", "show_progress"),
    "checkpoint_every",
}
_NOT_COMPARED = "an earlier call with resume=False"  # in place of parts that have no digest
_REMEDY = (
    "give the arguments as they were, resume=False to discard that call and start again, or another"
    " output_dir"
)


@dataclass(frozen=True, slots=True)
class ApiCall:
    """What one call was given.

    ``arguments``: by name, the value as sentences show it, and its digest. ``functions``: digests
    of the parts of each. ``program``: digest of the code, the libraries and the recipe made of the
    arguments.
    """

    id: str
    name: str
    arguments: dict[str, list[str]]
    functions: dict[str, Parts]
    program: str

    @property
    def key(self) -> str:
        """The key of everything that the call records in its store."""
        return f"{TRAINING}/{self.id}"

    def write(self, folder: Path) -> None:
        """Make this the call that ``folder`` belongs to, at once."""
        partial = folder / f".{CALL}.partial"
        partial.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        os.replace(partial, folder / CALL)

    def check_same(self, earlier: "ApiCall", folder: Path) -> None:
        """Raise UserError, naming each difference, unless ``earlier`` was given the same."""
        if self.name != earlier.name:
            raise UserError(
                f"output_dir = '{folder}' holds a call of {earlier.name}, not of {self.name};"
                f" {_REMEDY}"
            )
        changed = _changes(earlier, self)
        if changed:
            raise UserError(
                f"output_dir = '{folder}' holds a call with other arguments, which this one cannot"
                f" continue: {', '.join(changed)}; {_REMEDY}"
            )
        if self.program != earlier.program:
            raise UserError(
                f"output_dir = '{folder}' holds a call that other code of this program, or another"
                f" version of a library, began: digest {earlier.program[:12]} then and"
                f" {self.program[:12]} now; check out what began it, or give resume=False to"
                " discard that call and start again"
            )


def read_call(folder: Path) -> ApiCall | None:
    """Return the call that ``folder`` belongs to; None where there is none.

    Raises UserError for a file that is no such record.
    """
    file = folder / CALL
    if not file.exists():
        return None
    try:
        return ApiCall(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{file} cannot be read as the record of an earlier call ({error}); give resume=False"
            " to start again, or another output_dir"
        ) from error


def arguments_of(
    config: TrainingConfig, recipe: Recipe, model: tuple[str, Path], prompts: pl.DataFrame
) -> dict[str, list[str]]:
    """Return what decides a result among the arguments: the model's files (name, directory), the
    prompts, and the settings but ``FREE``."""
    name, source = model
    files = {file.name: file_digest(file.resolve()) for file in model_files(source)}
    counted = f"{prompts.height} prompt{'' if prompts.height == 1 else 's'}"
    found = {
        "model_name": [repr(name), digest_of(files)],
        "train_prompts": [counted, digest_of(prompts.write_ndjson())],
    }
    settings = {n: v for n, v in config.model_dump(mode="json").items() if n not in FREE}
    settings["dtype"] = recipe.model.dtype
    overrides = settings.pop("overrides")
    values = {f"config.{n}": v for n, v in settings.items()}
    values |= {f"config.overrides['{n}']": v for n, v in overrides.items()}
    return found | {n: [repr(v), digest_of(v)] for n, v in values.items()}


def functions_of(
    functions: Mapping[str, Callable[..., Any] | None], *, resume: bool
) -> dict[str, Parts]:
    """Return the parts of each function that was given.

    Raises UserError for one that cannot be compared with that of another call, unless no call is to
    be resumed.
    """
    found = {}
    for name, function in functions.items():
        try:
            found[name] = {} if function is None else parts_of(function)
        except Incomparable as error:
            if resume:
                raise UserError(
                    f"{name} cannot be compared with that of an earlier call, as resuming in an"
                    f" output_dir demands: {error}; put the function and what it uses into a"
                    " module, whose file is compared instead, or give resume=False, which trains"
                    " from the start each time"
                ) from None
            found[name] = {_NOT_COMPARED: ""}
    return found


def program_of(recipe: Recipe) -> tuple[str, str]:
    """Return the digest of the code, and that of it and of what the recipe says of RL."""
    code = code_digest("api")
    return code, digest_of([code, recipe.slice_for("rl")])


def _changes(earlier: ApiCall, later: ApiCall) -> list[str]:
    """Return in words which arguments and functions differ."""
    before, now = (
        call.arguments | {n: ["given" if p else "not given", p] for n, p in call.functions.items()}
        for call in (earlier, later)
    )
    said = []
    for name in sorted({*before, *now}):
        (old, was), (new, is_) = before.get(name, ["unset", ""]), now.get(name, ["unset", ""])
        if was != is_:
            said.append(f"{name} {'changed' if old == new else f'was {old} and is {new}'}")
    return said
