"""Which of several places sets a value: guessing wrong costs a run with the wrong number."""

from pathlib import Path

from flows.paths import RECIPES
from rlcore.recipes.origins import Origins, OriginValue, brief


def places(origins: Origins) -> dict[str, str | None]:
    return {value.path: value.place for value in origins.values()}


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def test_the_winner_of_every_place_is_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        _base="data: {sources: [{kind: arithmetic, train: 99}], deduplicate: exact}\n"
        "model: {from_scratch: {max_position_embeddings: 1024}, max_tokens: 1024}\n"
        "reward: {functions: [{name: arithmetic}]}\n"
        "rl: {iterations: 5, rollout: {samples: 4, max_new_tokens: 64}}\n"
        "evaluate: {max_new_tokens: 64}\n",
        mine="extends: _base\nname: mine\n"
        "rl: {preset: dapo, iterations: 6, rollout: {prompts: 32}}\n",
    )
    origins = Origins("mine", {"rl.iterations": 7, "seed": 3}, directory=tmp_path)
    base, mine = str(tmp_path / "_base.yaml"), str(tmp_path / "mine.yaml")
    assert origins.settings("rl.iterations") == [
        OriginValue(base, 5),
        OriginValue(mine, 6),
        OriginValue("override", 7),
    ]
    by = {
        "rl.iterations": "override",
        "seed": "override",
        "rl.rollout.prompts": mine,
        "rl.rollout.samples": base,
        "rl.algorithm.clip_high": "preset dapo",
        "rl.algorithm.overlong": "preset dapo",
        "data.sources.0.train": base,
        "data.sources.0.test": None,
        "rl.validation.every": None,
    }
    assert {path: places(origins)[path] for path in by} == by


def test_a_value_is_shown_in_one_line_and_as_it_is() -> None:
    """A blank in place of a line break would be another stop string."""
    assert brief(("\n\n",)) == r'["\n\n"]'
    assert brief("a\n  b") == r'"a\n  b"'
    assert brief(["a  b"]) == "[a  b]"


def test_a_replaced_section_takes_its_keys_with_it(tmp_path: Path) -> None:
    """A ``kl`` with another ``where`` drops the inherited coefficient: it is not its parent's."""
    write(
        tmp_path,
        one="extends: quickstart\nname: one\nrl: {algorithm: {kl: {where: loss, coef: 0.5}}}\n",
        two="extends: one\nname: two\nrl: {algorithm: {kl: {where: reward}}}\n",
        quickstart=(RECIPES / "quickstart.yaml").read_text(),
        _quickstart=(RECIPES / "_quickstart.yaml").read_text(),
    )
    origins = Origins("two", directory=tmp_path)
    assert places(origins)["rl.algorithm.kl.where"] == str(tmp_path / "two.yaml")
    assert places(origins)["rl.algorithm.kl.coef"] is None
    (line,) = [line for line in origins.lines() if "rl.algorithm.kl.coef" in line]
    assert line.split() == ["rl.algorithm.kl.coef", "0.001", "0.01", "by", "other", "keys"]


def test_the_table_holds_what_differs_and_nothing_else() -> None:
    given = {"rl.critic": None, "rl.iterations": 100, "sft.optimizer.betas.1": 0.98}
    origins = Origins("quickstart", given, directory=RECIPES)
    assert places(origins)["sft.optimizer.betas"] == "override", "one item of a list"
    keys = [line.split()[0] for line in origins.lines()[1:]]
    assert "rl.iterations" not in keys, "set, to the default"
    assert "rl.critic" not in keys
    assert {"model.from_scratch", "data.sources.0.kind", "sft.optimizer.lr"} <= set(keys)
