"""What is declared of the stages, without importing what they run."""

import subprocess
import sys

from flows.places import ROOT
from flows.rl_pipeline import STAGES
from tasks.runtime.declared import declared


def test_a_stage_counts_its_own_module() -> None:
    """One whose own file were left out would be served from before its last change."""
    found = declared()
    assert list(found) == list(STAGES)
    for stage, made in STAGES.items():
        assert made.declared.code == found[stage].code
        assert made._body.__module__ in found[stage].code


def test_no_library_that_takes_a_second_is_imported_for_them() -> None:
    code = """import sys
from flows.places import RECIPES
from rlcore.recipes import load_recipe
from tasks.runtime.declared import declared
recipe = load_recipe("quickstart", {}, directory=RECIPES)
for stage, one in declared().items():
    if stage != "reward_model":
        one.keys(recipe, {})
heavy = {"prefect", "pandas", "torch", "transformers", "ray", "vllm", "polars"} & set(sys.modules)
assert not heavy, heavy"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)
