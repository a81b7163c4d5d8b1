"""What runs differ in, and nothing else."""

from pathlib import Path

from rlcore.results.compare import RunDifference, differing_settings, recipe_differences
from rlcore.results.run import Run
from tests.rlcore.results.evaluated import completions, make_run


def test_keys_are_dotted_and_only_those_that_differ_are_there() -> None:
    first = {
        "name": "a",
        "seed": 0,
        "rl": {"kl": {"coef": 0.1}, "steps": 3},
        "terms": [{"name": "x", "weight": 1.0}, {"name": "y", "weight": 0.0}],
        "pass_k": [1, 4],
        "judges": {},
    }
    second = {
        "name": "b",
        "seed": 1,
        "rl": {"kl": None, "steps": 3},
        "terms": [{"name": "x", "weight": 0.5}],
        "pass_k": [1, 8],
        "judges": {},
    }
    assert recipe_differences([first, second, first]) == [
        RunDifference("recipe", "seed", ("0", "1", "0")),
        RunDifference("recipe", "rl.kl.coef", ("0.1", None, "0.1")),
        RunDifference("recipe", "terms.0.weight", ("1.0", "0.5", "1.0")),
        RunDifference("recipe", "terms.1.name", ("y", None, "y")),
        RunDifference("recipe", "terms.1.weight", ("0.0", None, "0.0")),
        RunDifference("recipe", "pass_k", ("[1, 4]", "[1, 8]", "[1, 4]")),
        RunDifference("recipe", "rl.kl", (None, "null", None)),
    ]
    assert recipe_differences([first, first]) == []


def test_other_code_is_a_difference(tmp_path: Path) -> None:
    folder, evaluation = tmp_path / "runs", completions({"a": True})
    for name, code in (("a-00000001", "x" * 64), ("a-00000002", "y" * 64), ("a-00000003", "")):
        if code:
            make_run(folder, name, evaluation=evaluation, code=code)
        else:
            make_run(folder, name, curves={"rl": {1: {"loss": 1.0}}})
    runs = [Run.open(name, folder) for name in ("a-00000001", "a-00000002", "a-00000003")]
    assert differing_settings(runs) == [
        RunDifference("code", "evaluate", ("x" * 12, "y" * 12, None))
    ]
    assert differing_settings([runs[0], runs[2]]) == []
