"""Passes are halved while what belongs together fits."""

import pytest

from rlcore.dry_run.passes import smaller_passes
from tests.rlcore.diagnostics.streams import recipe


@pytest.mark.parametrize(
    ("name", "tokens", "half"),
    [
        ("quickstart", 4096, 2048),
        ("quickstart", 300, 150),
        ("quickstart", 255, None),  # the longest sequence has 128
        ("quickstart-rlhf", 8192, 4096),
        ("quickstart-rlhf", 512, None),  # the responses to a prompt are compared in one pass
    ],
)
def test_passes_are_halved_while_what_belongs_together_fits(
    name: str, tokens: int, half: int | None
) -> None:
    assert smaller_passes(recipe(name, hardware__learner__micro_batch_tokens=tokens)) == half
