"""The golden inputs are unchanged, every golden is compared, and the files stay small."""

import pytest

from tests.golden import batches as made
from tests.golden.comparison import HERE, VERSIONS, family, goldens


@pytest.mark.parametrize("name", list(made.FAMILIES))
def test_inputs_are_those_of_the_oracles(name: str) -> None:
    """Another numpy may draw other numbers from the seed; then every test below is void."""
    assert made.digest(name, family(name)) == VERSIONS["input_sha256"][name], (
        f"the {name} batches are not those the goldens were made of; run generate.py again"
    )


def test_every_golden_is_compared() -> None:
    """A golden that no test reads would look like a check."""
    texts = [path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py")]
    names = VERSIONS["oracles"].keys()
    assert {golden.split("/")[0] for golden in goldens()} == set(names)
    missing = [name for name in names if not any(f'"{name}' in text for text in texts)]
    assert not missing, f"{missing} are in the files, and no test reads them"


def test_the_files_stay_small() -> None:
    """They are in every checkout."""
    assert sum(path.stat().st_size for path in HERE.glob("*.npz")) < 4e6
