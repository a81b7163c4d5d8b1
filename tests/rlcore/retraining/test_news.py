"""What the champion has seen is nothing new, and what was tried is not tried again."""

from pathlib import Path

import polars as pl
import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe, recipe_digest
from rlcore.retraining.champions import ROLLED_BACK, add_champion, champions
from rlcore.retraining.gate_records import Side, ask
from rlcore.retraining.news import news, observe
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.recipe import Recipe
from tests.rlcore.data.row_files import VERL_ROWS, write
from tests.rlcore.results.evaluated import completions
from tests.rlcore.retraining.rivals import right_answers

pytestmark = pytest.mark.timeout(60)


class Retrained:
    """A recipe that reads ``rows/*.jsonl``, and a store of what came of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, ArtifactStore(folder / "store")
        (folder / "rows").mkdir()

    def recipe(self, least: int = 1) -> Recipe:
        source = {"kind": "file", "path": str(self.folder / "rows" / "*.jsonl")}
        section = {"min_new_rows": least}
        given = {"data.sources": [source], "retrain": section, "store": self.store.root}
        return load_recipe("quickstart", given, directory=RECIPES)

    def arrives(self, name: str, first: int, count: int) -> None:
        write(self.folder / "rows" / f"{name}.jsonl", VERL_ROWS[first : first + count])

    def nothing(self, least: int = 1) -> str:
        recipe = self.recipe(least)
        return news(recipe, self.store, observe(recipe.data)).nothing

    def trained(self, key: str, share: float) -> None:
        """Plant what a run of now would have made, ask the gate and promote."""
        recipe = self.recipe()
        observed = observe(recipe.data)
        made = Lineage("r", "c")
        frame = pl.DataFrame(
            [(each.source, each.url, each.digest) for each in observed.inputs],
            schema={"source": pl.String, "url": pl.String, "digest": pl.String},
            orient="row",
        )
        self.store.put("inputs", f"{key}-dataset", tables={"inputs": frame}, lineage=made)
        dataset = self._put("dataset", f"{key}-dataset", {})
        drawn, results = completions(right_answers(share))
        tables = {"completions": drawn, "eval_results": results}
        evaluation = self.store.put("evaluation", key, tables=tables, lineage=made)
        export = self._put("export", key, {"dataset": dataset})
        entries = champions(self.store, recipe.name)
        before = entries[-1] if entries else None
        theirs = self.store.find("evaluation", before.export_key) if before else None
        assert recipe.retrain is not None
        outcome = ask(
            self.store,
            recipe.name,
            recipe.retrain,
            candidate=export,
            side=Side(evaluation, "rl"),
            champion=before,
            champion_side=None if theirs is None else Side(theirs, "rl"),
            inputs_digest=observed.digest,
            recipe_digest=recipe_digest(recipe),
        )
        if outcome.promotes:
            cause, after = outcome.verdict.value, before.number if before else 0
            add_champion(
                *(self.store, recipe.name),
                after=after,
                export=export,
                cause=cause,
                decision=outcome.ref,
            )

    def _put(self, kind: str, key: str, parents: dict[str, ArtifactRef]) -> ArtifactRef:
        frame = pl.DataFrame(
            {"stage": ["rl"], "step": pl.Series([1], dtype=pl.Int64), "name": [key], "value": [1.0]}
        )
        lineage = Lineage("r", "c", parents)
        return self.store.put(kind, key, tables={"metrics": frame}, lineage=lineage)


def test_news_come_with_files_and_end_with_a_decision(tmp_path: Path) -> None:
    one = Retrained(tmp_path)
    one.arrives("1", 0, 3)
    assert one.nothing() == "", "there is no champion yet"
    one.trained("first", 0.5)
    assert one.nothing() == "champion 1 of 'quickstart' has learnt from all that there is"
    (tmp_path / "rows" / "1.jsonl").rename(tmp_path / "rows" / "renamed.jsonl")
    assert "has learnt from all" in one.nothing(), "a name is no content"
    one.arrives("2", 3, 5)
    assert one.nothing() == ""
    few = "has not seen 2.jsonl with 5 rows, fewer than retrain.min_new_rows = 6"
    assert one.nothing(least=6).endswith(few)
    one.trained("held", 0.2)
    assert one.nothing().endswith("and held as worse")
    one.arrives("3", 8, 2)
    assert one.nothing() == "", "more came"
    one.trained("second", 0.9)
    assert "champion 2 of 'quickstart' has learnt" in one.nothing()


def test_a_model_that_was_rolled_back_is_not_made_again(tmp_path: Path) -> None:
    one = Retrained(tmp_path)
    for number, share in enumerate((0.5, 0.9)):
        one.arrives(str(number), 2 * number, 2)
        one.trained(f"model-{number}", share)
    first, _ = champions(one.store, "quickstart")
    add_champion(
        one.store, "quickstart", after=2, export=first.export, cause=ROLLED_BACK, restored=1
    )
    assert one.nothing().endswith("; this made champion 2, which 3 has replaced since")


def test_a_promotion_whose_process_was_killed_before_it_is_finished(tmp_path: Path) -> None:
    import shutil

    one = Retrained(tmp_path)
    for number, share in enumerate((0.5, 0.9)):
        one.arrives(str(number), 2 * number, 2)
        one.trained(f"model-{number}", share)
    shutil.rmtree(Path(one.store.root) / "champions" / "quickstart" / "2")
    assert one.nothing() == "", "the decision is there and the champion is not"
