"""Whose license a card states: nobody may read one there that was not given."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

from flows.paths import RECIPES
from rlcore.evaluation.license import License, export_license, license_inputs, license_of_card
from rlcore.recipes.load import load_recipe
from schemas.recipe import Recipe

NEVER_OURS = "---\nlicense: mit\nlanguage: en\n---\n\n# A model\n"


def recipe(**export: Any) -> Recipe:
    overrides = {f"export.{key}": value for key, value in export.items()}
    return load_recipe("quickstart", overrides, directory=RECIPES)


def of_directory(directory: Path, **export: Any) -> Recipe:
    overrides = {"model.path": str(directory), "model.from_scratch": None}
    overrides |= {f"export.{key}": value for key, value in export.items()}
    return load_recipe("quickstart", overrides, directory=RECIPES)


def stated(chosen: Recipe) -> License | None:
    warnings: list[str] = []
    found = export_license(chosen, commit=None, warn=warnings.append)
    assert warnings == []
    return found


def test_the_recipes_license_is_before_the_base_models(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(NEVER_OURS)
    assert stated(of_directory(tmp_path)) == License("mit")
    assert stated(of_directory(tmp_path, license="Apache-2.0")) == License("apache-2.0")


def test_without_a_card_and_without_a_key_there_is_no_license(tmp_path: Path) -> None:
    assert stated(recipe()) is None
    assert stated(of_directory(tmp_path)) is None


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (NEVER_OURS, License("mit")),
        ("---\nlicense: [apache-2.0]\n---\n", License("apache-2.0")),
        ("---\nlicense: [mit, apache-2.0]\n---\n", None),
        (
            "---\nlicense: other\nlicense_name: qwen-research\n"
            "license_link: https://qwen.example/LICENSE\n---\n",
            License("other", "qwen-research", "https://qwen.example/LICENSE"),
        ),
        ("---\nlicense: other\nlicense_link: LICENSE\n---\n", License("other", "other")),
        ("---\nlicense: The Example License\n---\n", License("other", "The Example License")),
        ("---\nlanguage: en\n---\n", None),
        ("---\nlicense: mit\n", None),
        ("---\n: [\n---\n", None),
        ("---\n- mit\n---\n", None),
        ("# license: mit\n", None),
        ("", None),
        (None, None),
    ],
)
def test_the_front_matter_of_a_card(card: str | None, expected: License | None) -> None:
    assert license_of_card(card) == expected


def test_another_license_of_the_base_model_makes_another_export(tmp_path: Path) -> None:
    """A card from cache would continue stating the license that its owner took back."""
    before = license_inputs(of_directory(tmp_path))
    (tmp_path / "README.md").write_text(NEVER_OURS)
    after = license_inputs(of_directory(tmp_path))
    assert before != after
    (tmp_path / "README.md").write_text(NEVER_OURS + "more words\n")
    assert license_inputs(of_directory(tmp_path)) == after
    assert license_inputs(of_directory(tmp_path, license="mit")) == {}
    assert license_inputs(recipe()) == {}


def hub_recipe() -> Recipe:
    overrides = {"model.path": "nobody/base", "model.from_scratch": None}
    return load_recipe("quickstart", overrides, directory=RECIPES)


def test_the_card_of_a_hub_model_is_that_of_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the hub's cache, as files of a model are; nothing is fetched."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    commit = "c" * 40
    snapshot = tmp_path / "models--nobody--base" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "README.md").write_text(NEVER_OURS)
    found = export_license(hub_recipe(), commit=commit, warn=pytest.fail)
    assert found == License("mit")


def test_a_card_that_cannot_be_fetched_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    warnings: list[str] = []
    assert export_license(hub_recipe(), commit=None, warn=warnings.append) is None
    assert warnings == [
        "the model card states no license: the card of model.path = 'nobody/base' cannot be read"
        " (HF_HUB_OFFLINE is set); set export.license"
    ]


def test_a_connection_that_drops_costs_the_line_and_not_the_export(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drop(*_: object, **__: object) -> str:
        raise HTTPError("Server disconnected without sending a response.")

    monkeypatch.setattr("rlcore.evaluation.license.hub_unreachable", str)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", drop)
    warnings: list[str] = []
    assert export_license(hub_recipe(), commit=None, warn=warnings.append) is None
    assert len(warnings) == 1
    assert "set export.license" in warnings[0]
    assert "Server disconnected" in warnings[0]
