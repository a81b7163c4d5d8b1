"""Functions are loaded in a process with the limits of reward functions, and its time."""

import time
from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.plan import functions
from rlcore.plan.functions import check_functions
from rlcore.recipes.load import load_recipe
from rlcore.rewards import link, process
from schemas.errors import UserError

LOOKS = """
import os, pathlib
pathlib.Path(__file__).with_suffix('.seen').write_text(
    f"{os.environ.get('HF_TOKEN')} {os.environ.get('JUDGE_KEY')} {os.getpid()}")
def f(prompt, response): return 1.0
def g(prompt, response): return 1.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def check(*names: str, **overrides: Any) -> None:
    rewards = [{"name": name} for name in names] or [{"name": "gsm8k"}]
    paths = {path.replace("__", "."): value for path, value in overrides.items()}
    given = {"reward.functions": rewards, **paths}
    check_functions(load_recipe("quickstart", given, directory=RECIPES))


def test_a_module_that_hangs_ends_within_the_limit_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "fn_hangs.py").write_text("import time; time.sleep(60)\n")
    assert process.LOOK_S < 20
    monkeypatch.setattr(process, "LOOK_S", 0.4)
    begun = time.monotonic()
    said = r"^reward\.functions\[0\]\.name = 'fn_hangs:f' was not imported within 0\.4 s; import"
    with pytest.raises(UserError, match=said):
        check("fn_hangs:f")
    assert time.monotonic() - begun < 10


@pytest.mark.slow
def test_an_engine_of_ones_own_may_take_minutes_to_import(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports what vLLM does; a reward function is not that large."""
    (folder / "fn_engine.py").write_text("import time; time.sleep(2)\nclass Engine: pass\n")
    monkeypatch.setattr(process, "LOOK_S", 0.4)
    with pytest.raises(UserError, match=r"lacks|needs|has no"):
        check(hardware__rollout__engine="fn_engine:Engine")
    monkeypatch.setattr(functions, "ENGINE_S", 0.4)
    with pytest.raises(
        UserError, match=r"engine = 'fn_engine:Engine' was not imported within 0\.4 s"
    ):
        check(hardware__rollout__engine="fn_engine:Engine")


def test_a_module_sees_the_variables_that_are_named_and_no_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "planted")
    monkeypatch.setenv("JUDGE_KEY", "named")
    (folder / "fn_looks.py").write_text(LOOKS)
    check("fn_looks:f", reward__env=["JUDGE_KEY"])
    token, key, _ = (folder / "fn_looks.seen").read_text().split()
    assert (token, key) == ("None", "named")


def test_a_crash_of_one_is_not_blamed_on_another(folder: Path) -> None:
    (folder / "fn_crashes.py").write_text("import os; os.abort()\n")
    (folder / "fn_good.py").write_text(LOOKS)
    with pytest.raises(
        UserError, match=r"functions\[1\].*'fn_crashes:f' ended .* \(signal SIGABRT\)"
    ):
        check("fn_good:f", "fn_crashes:f", "fn_good:g")


def test_without_functions_of_the_user_no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link.subprocess, "Popen", None)
    check("arithmetic")


def test_an_engine_that_lacks_a_method_is_refused_before_the_run(folder: Path) -> None:
    """After SFT it would end in an AttributeError of a worker."""
    (folder / "own_engine_of_test.py").write_text(
        "class Mine:\n    def __init__(self, spec): ...\n"
    )
    said = r"^hardware\.rollout\.engine = 'own_engine_of_test:Mine' lacks generate, load_weights, "
    with pytest.raises(UserError, match=said):
        check("arithmetic", hardware__rollout__engine="own_engine_of_test:Mine")
