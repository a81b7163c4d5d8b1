"""The example of docs/start/own_environment.md, copied from the page and played."""

import random
import re
from pathlib import Path

import pytest

from flows.paths import RECIPES
from rlcore.envs.process import EnvironmentProcess
from rlcore.envs.types import Answer, Call
from rlcore.recipes.load import load_recipe

pytestmark = pytest.mark.timeout(60)
GUIDE = Path(__file__).parents[3] / "docs" / "start" / "own_environment.md"


def test_the_guides_environment_loads_and_plays(tmp_path: Path) -> None:
    """A stranger's first environment fails on a line that was copied from the guide."""
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))
    (tmp_path / "guess.py").write_text(blocks["python"])
    (tmp_path / "guess.yaml").write_text(blocks["yaml"])
    section = load_recipe(str(tmp_path / "guess.yaml"), directory=RECIPES).environment
    assert section is not None
    process = EnvironmentProcess(section)

    def answer(call: Call) -> Answer:
        (only,) = process.exchange([call], 1)
        assert not only.failure
        return only

    seeded = random.Random(3).randint(1, 9)
    try:
        start = answer(Call("a", row={}, seed=3)).start
        assert start is not None
        assert start.messages == [{"role": "user", "content": "Guess from 1 to 9."}]
        unread = answer(Call("a", "nine")).step
        assert unread is not None
        assert not unread.valid
        for number in range(1, 10):
            step = answer(Call("a", str(number))).step
            assert step is not None
            if step.done:
                assert (step.reward, number) == (1.0, seeded)
                break
            assert step.messages[0]["content"] == "higher"
    finally:
        process.close()
