"""``rl-pipeline explain``: what a key means, and who set it."""

from pathlib import Path

import pytest

from flows.cli import main
from flows.paths import RECIPES


def test_a_key_says_type_limits_default_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "rl.rollout.samples"]) == 0
    printed = capsys.readouterr().out
    assert "rl.rollout.samples: responses per prompt" in printed
    for line in ("type      integer", "limits    >= 1", "default   8", "dapo 16"):
        assert line in printed


def test_a_recipe_shows_the_chain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(RECIPES.parents[1])
    arguments = ["explain", "rl.rollout.max_new_tokens", "hard-dapo"]
    assert main([*arguments, "-o", "rl.rollout.max_new_tokens=60"]) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "in recipe hard-dapo: rl.rollout.max_new_tokens = 60 (override)",
        "  overrides 20480 of preset dapo",
        "  overrides 40 of flows/recipes/_quickstart.yaml",
        "  overrides 56 of flows/recipes/_hard.yaml",
    ]


def test_a_section_lists_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "rl.ptx", "quickstart"]) == 0
    printed = capsys.readouterr().out
    assert "rl.ptx.coef  " in printed
    assert "in recipe quickstart: rl.ptx = null (default)" in printed


def test_an_index_finds_every_kind_of_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "data.sources[0].path"]) == 0
    printed = capsys.readouterr().out
    assert "(kind gsm8k)" in printed
    assert "(kind file)" in printed


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("lr", "rl.update.optimizer.lr"),
        ("temperature", "rl.rollout.temperature"),
        ("rl.rollout.sampels", "rl.rollout.samples"),
        ("rl.temperatur", "rl.rollout.temperature"),
        ("qqqqqq", "docs/reference/recipe.md lists all keys"),
    ],
)
def test_an_unknown_key_names_the_nearest(
    key: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", key]) == 2
    assert near in capsys.readouterr().err


def test_a_recipe_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("quickstart", "_quickstart"):
        (tmp_path / f"{name}.yaml").write_text((RECIPES / f"{name}.yaml").read_text())
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: quickstart\nname: mine\nsft: {max_steps: 3}\n")
    assert main(["explain", "sft.max_steps", str(mine)]) == 0
    printed = capsys.readouterr().out
    assert f"sft.max_steps = 3 ({mine})" in printed
    assert f"overrides 1200 of {tmp_path / '_quickstart.yaml'}" in printed
