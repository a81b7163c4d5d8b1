"""Whether there is something to learn that the champion has not seen, and that was not tried."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlcore.evaluation.promotion import Verdict
from rlcore.recipes import recipe_digest
from rlcore.results.queries import answer
from rlcore.retraining.champions import DECISIONS, Champion, champion, champions, decisions
from rlcore.retraining.observed import Input, Observed, new_rows
from rlcore.store.reader import ArtifactReader
from schemas.recipe import Recipe

SHOWN = 3
_PROMOTED = (Verdict.FIRST.value, Verdict.PROMOTED.value)


@dataclass(frozen=True, slots=True)
class News:
    """What a retraining would learn from. ``fresh``: what of it the champion has not seen.

    ``nothing``: why there is nothing to do; empty where there is. ``told``: what was found, as a
    sentence.
    """

    observed: Observed
    champion: Champion | None
    fresh: tuple[Input, ...]
    nothing: str
    told: str


def news(recipe: Recipe, store: ArtifactReader, observed: Observed) -> News:
    """Return what is new in ``observed`` for the champion of ``recipe``, which has the section
    ``retrain``."""
    assert recipe.retrain is not None, "the flow refuses a recipe without the section"
    reigning = champion(store, recipe.name)
    if reigning is None:
        told = f"'{recipe.name}' has no champion yet"
        return News(observed, None, observed.inputs, "", told)
    unseen = _unseen(store, reigning, observed.inputs)
    fresh = tuple(each for each in observed.inputs if each.digest in unseen)
    of_champion = f"champion {reigning.number} of '{recipe.name}'"
    if not fresh:
        nothing = f"{of_champion} has learnt from all that there is"
        return News(observed, reigning, (), nothing, nothing)
    rows, least = new_rows(recipe.data, fresh), recipe.retrain.min_new_rows
    named = ", ".join(each.url.rpartition("/")[2] for each in fresh[:SHOWN])
    more = f" and {len(fresh) - SHOWN} more" if len(fresh) > SHOWN else ""
    count = "" if rows is None else f" with {rows} rows"
    told = f"{of_champion} has not seen {named}{more}{count}"
    if rows is not None and rows < least:
        nothing = f"{told}, fewer than retrain.min_new_rows = {least}"
    else:
        tried = _tried(recipe, store, observed)
        nothing = f"{told}; {tried}" if tried else ""
    return News(observed, reigning, fresh, nothing, told)


def _unseen(store: ArtifactReader, entry: Champion, inputs: Sequence[Input]) -> set[str]:
    """Return the digests among ``inputs`` that no file or dataset has which ``entry`` was made
    from."""
    listed = ", ".join(f"'{digest}'" for digest in sorted({each.digest for each in inputs}))
    if not listed:
        return set()
    key = entry.export_key.replace("'", "''")
    found = answer(
        store,
        f"""
        SELECT digest FROM (SELECT unnest([{listed}]) AS digest)
        WHERE digest NOT IN (
            SELECT seen.digest FROM inputs seen JOIN lineage made ON made.parent_key = seen.key
            WHERE made.kind = 'export' AND made.key = '{key}' AND made.parent_kind = 'dataset')
        """,
    )
    return {row[0] for row in found.rows}


def _tried(recipe: Recipe, store: ArtifactReader, observed: Observed) -> str:
    """Return what came of an earlier training of this recipe on just these contents; empty where
    there was none, or it was to be promoted and its process was killed before."""
    made = decisions(store, recipe.name).filter(inputs_digest=observed.digest)
    digest = recipe_digest(recipe)
    for row in made.sort("made", descending=True, maintain_order=True).iter_rows(named=True):
        ref = store.find(DECISIONS, f"{recipe.name}/{row['key']}")
        if ref is None or store.manifest(ref).recipe_digest != digest:
            continue
        if row["verdict"] not in _PROMOTED:
            return f"this was tried on {row['made'][:10]} and held as {row['verdict']}"
        entries = champions(store, recipe.name)
        number = next((e.number for e in entries if e.decision_key == row["key"]), None)
        if number is None:
            return ""
        return f"this made champion {number}, which {entries[-1].number} has replaced since"
    return ""
