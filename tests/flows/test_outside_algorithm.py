"""An algorithm from outside the package: that of the guide, word for word, through the pipeline."""

import json
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import yaml

from rlcore.results.queries import query
from rlcore.store.artifacts import ArtifactStore
from tests.flows.small_run import INLINE, SMALL, model_digests, run_recipe

GUIDE = Path(__file__).parents[2] / "docs" / "start" / "own_algorithm.md"
pytestmark = pytest.mark.timeout(300)


def _block(after: str) -> str:
    """Return the first indented block of the guide after the line that holds ``after``."""
    text = GUIDE.read_text(encoding="utf-8").split(after, 1)[1]
    found = re.search(r"\n\n((?:    .*\n|\n)+)", text)
    assert found, f"the guide has no block after {after!r}"
    return textwrap.dedent(found[1]).strip() + "\n"


def _flat(tree: dict, prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        nested = isinstance(value, dict) and key not in ("advantage_options", "kl")
        flat.update(_flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
    return flat


@pytest.mark.slow
def test_the_guides_algorithm_trains(prefect_server: str, tmp_path: Path) -> None:
    """Whoever follows the guide must get a run that uses their two functions."""
    code, recipe = _block("An advantage estimator and a loss"), _block("and the recipe names them:")
    lines = [line for line in (code + recipe).splitlines() if line.strip()]
    assert len(lines) < 30, f"the guide promises a few lines and shows {len(lines)}"
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "spo.py").write_text(code, encoding="utf-8")
    over = {**SMALL, **INLINE, "sft.enabled": False, **_flat(yaml.safe_load(recipe))}
    run = run_recipe(tmp_path, ["", "quickstart", json.dumps(over)])
    assert run.returncode == 0, run.stdout[-4000:]

    rows = query(
        ArtifactStore(str(tmp_path / "runs" / "store")),
        "select iteration, uid, score, advantages[turn_ends[1]] as advantage from trajectories",
    )
    for group in rows.partition_by("iteration", "uid"):
        scores = group["score"].to_numpy()
        wanted = scores - np.quantile(scores, 0.5)
        assert np.allclose(group["advantage"].to_numpy(), wanted, atol=1e-6)
    trained = set(model_digests(tmp_path, "policy").values())
    assert trained != set(model_digests(tmp_path, "base_model").values()), "weights must move"
