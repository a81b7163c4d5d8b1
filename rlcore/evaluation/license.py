"""The license of an export: the recipe's, or that of the base model by its own model card."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlcore.models.files import hub_unreachable, local_directory
from rlcore.recipes.text import BoundedLoader
from rlcore.store.inputs import Read, read_file_digest
from schemas.licenses import HUB_LICENSES
from schemas.recipe import Recipe

CARD = "README.md"


@dataclass(frozen=True, slots=True)
class License:
    """A license as the hub's metadata has it: one the hub does not know is "other" with a name."""

    id: str
    name: str | None = None
    link: str | None = None

    @property
    def text(self) -> str:
        """Return the license's name, for people."""
        return self.name or self.id


def named(name: str, link: str | None = None) -> License:
    """Return the license that ``name`` names, in the hub's spelling where the hub knows it.

    >>> named("Apache-2.0").id, named("GPL-3.0-only").id, named("GPL-3.0-only").text
    ('apache-2.0', 'other', 'GPL-3.0-only')
    """
    known = name.lower() in HUB_LICENSES
    return License(name.lower(), link=link) if known else License("other", name, link)


def export_license(
    recipe: Recipe, *, commit: str | None, warn: Callable[[str], None]
) -> License | None:
    """Return ``export.license``, else the license that the base model's card states, else None.

    ``commit``: that of a base model from the hub. A card that the hub holds and that cannot be
    fetched is reported to ``warn``.
    """
    model = recipe.model
    if recipe.export.license is not None:
        return named(recipe.export.license)
    if model.path is None:
        return None
    if local := local_directory(model.path):
        return _of_directory(local)
    return license_of_card(_hub_card(model.path, commit or model.revision, warn))


def license_inputs(recipe: Recipe) -> dict[str, Read]:
    """Return what ``export_license`` reads from a base model's directory, for the stage's key.

    The card of a hub model counts by the model's commit, which the base model's content identifies.
    """
    directory = local_directory(recipe.model.path)
    if recipe.export.license is not None or directory is None:
        return {}
    card = directory / CARD
    files = read_file_digest(str(card), "model.path").files() if card.is_file() else ()
    return {"license of the base model": Read(str(_of_directory(directory)), lambda: files)}


def license_of_card(text: str | None) -> License | None:
    """Return the license in the front matter of a model card; None where it states none."""
    lines = (text or "").splitlines()
    if not lines or lines[0].strip() != "---" or "---" not in lines[1:]:
        return None
    try:
        data = yaml.load("\n".join(lines[1 : lines.index("---", 1)]), Loader=BoundedLoader)
    except yaml.YAMLError:  # somebody else's file
        return None
    if not isinstance(data, dict):
        return None
    keys = ("license", "license_name", "license_link")
    stated, name, link = (_words(data.get(key)) for key in keys)
    if stated is None:
        return None
    if link is not None and not link.startswith(("https://", "http://")):
        link = None  # a file beside that card, which is not beside this one
    return named(name or stated, link) if stated.lower() == "other" else named(stated, link)


def _words(value: Any) -> str | None:
    """Return the text of a metadata value on one line; of a list, its only member."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return " ".join(value.split()) or None if isinstance(value, str) else None


def _of_directory(directory: Path) -> License | None:
    card = directory / CARD
    return license_of_card(_read(card)) if card.is_file() else None


def _read(card: Path) -> str:
    return card.read_text(encoding="utf-8", errors="replace")


def _hub_card(name: str, revision: str | None, warn: Callable[[str], None]) -> str | None:
    """Return the text of a hub model's card, from the hub's cache where it is there."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of whichever httpx the hub uses
        LocalEntryNotFoundError,
    )

    problem = hub_unreachable()
    try:
        path = hf_hub_download(name, CARD, revision=revision, local_files_only=bool(problem))
        return _read(Path(path))
    except LocalEntryNotFoundError:
        problem = problem or "the hub did not answer"
    except EntryNotFoundError:
        return None  # the hub holds no card of this model
    except (HTTPError, OSError) as error:
        problem = str(error).strip().partition("\n")[0]
    warn(
        f"the model card states no license: the card of model.path = '{name}' cannot be read"
        f" ({problem}); set export.license"
    )
    return None
