"""The license of an export is a name that the hub takes."""

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("apache-2.0", "apache-2.0"),
        ("Apache-2.0", "apache-2.0"),
        ("MIT", "mit"),
        ("GPL-3.0-only", "GPL-3.0-only"),
        ("openrail++", "openrail++"),
        (None, None),
    ],
)
def test_a_name_is_kept_in_the_hubs_spelling(given: str | None, kept: str | None) -> None:
    recipe = load_recipe("quickstart", {"export.license": given}, directory=RECIPES)
    assert recipe.export.license == kept


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("Apache 2.0", "did you mean 'apache-2.0'?"),
        ("mit/x11", "did you mean 'mit'?"),
        ("", "give a license name of the hub or an SPDX id"),
        (2.0, "export.license = 2.0"),
    ],
)
def test_what_is_no_name_is_refused_before_anything_starts(given: object, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        load_recipe("quickstart", {"export.license": given}, directory=RECIPES)
    sentence = str(refusal.value)
    assert sentence.startswith("recipe 'quickstart': export.license"), sentence
    assert words in sentence
