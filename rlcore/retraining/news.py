"""Whether there is something to learn that the champion has not seen, and that was not tried:
what a recipe would read now, hub datasets at their commits, files by their content."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlcore.data.sources import count_rows, data_digests, read_file
from rlcore.evaluation.promotion_rule import Verdict
from rlcore.models.files import hub_unreachable
from rlcore.recipes.load import recipe_digest
from rlcore.results.queries import answer
from rlcore.retraining.champions import DECISIONS, Champion, champion, champions, decisions
from rlcore.store.inputs import files_read
from rlcore.store.reader import ArtifactReader
from schemas.data import AimeSource, DataSection, Gsm8kSource, HubSource, MathSource
from schemas.errors import UserError
from schemas.recipe import Recipe

HUB = "hf://"
TEST = "test"


@dataclass(frozen=True, slots=True)
class Input:
    """A file or hub dataset that training would read: who reads it, where, and what it holds."""

    source: str
    url: str
    digest: str  # a commit, of a dataset of the hub


@dataclass(frozen=True, slots=True)
class Observed:
    """What training would read now, without test rows.

    ``pins``: dotted recipe keys that hold the hub's datasets at the commits found. ``notes``: what
    could not be looked at, and counts as unchanged.
    """

    inputs: tuple[Input, ...]
    pins: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The sha256 over all contents, in any order."""
        return hashlib.sha256("\n".join(sorted(i.digest for i in self.inputs)).encode()).hexdigest()


def observe(data: DataSection) -> Observed:
    """Return what ``data`` names now.

    Raises UserError for a file that is missing, a pattern without files, and a dataset that the hub
    does not have.
    """
    pins: dict[str, str] = {}
    notes: list[str] = []
    sources = list(data.sources)
    open_names = _unpinned(data)
    unreachable = hub_unreachable() if open_names else ""
    for index, name in open_names.items():
        why = unreachable
        if isinstance(data.sources[index], Gsm8kSource):
            why = "a source of kind gsm8k cannot be pinned"
        if why:
            notes.append(f"hub dataset '{name}' counts as unchanged: {why}")
        else:
            commit = _newest_commit(name)
            pins[f"data.sources.{index}.revision"] = commit
            sources[index] = sources[index].model_copy(update={"revision": commit})
    read = files_read(data_digests(data.model_copy(update={"sources": tuple(sources)})))
    inputs = tuple(Input(*each) for each in read if not _is_of_test_rows(data, each[0]))
    return Observed(inputs, pins, tuple(notes))


def new_rows(data: DataSection, inputs: Sequence[Input]) -> int | None:
    """Return how many rows the files of ``inputs`` have, at most ``limit`` of each; None where one
    is a dataset of the hub, whose new rows are not known before it is fetched."""
    total = 0
    for each in inputs:
        if each.url.startswith(HUB):
            return None
        count = count_rows(each.url, setting=each.source)
        if count is None:
            count = len(read_file(each.url, setting=each.source))
        limit = getattr(data.sources[_index(each.source)], "limit", None)
        total += count if limit is None else min(count, limit)
    return total


def _unpinned(data: DataSection) -> dict[int, str]:
    """Return the names of the hub datasets without a commit, by the number of their source."""
    found = {}
    for index, source in enumerate(data.sources):
        match source:
            case HubSource(name=name, revision=None):
                found[index] = name
            case MathSource(path=None, revision=None) | AimeSource(path=None, revision=None):
                found[index] = source.hub_name
            case Gsm8kSource():
                reads = data_digests(DataSection(sources=(source,)))
                if any(url.startswith(HUB) for _, url, _ in files_read(reads)):
                    found[index] = source.hub_name
    return found


def _newest_commit(name: str) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of whichever httpx the hub uses
    )

    try:
        commit = HfApi().dataset_info(name).sha
    except (HTTPError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"the hub does not say at which commit dataset '{name}' is: {reason}; correct"
            " data.sources, or pin revision"
        ) from error
    assert commit is not None, "the hub names a commit of each dataset"
    return commit


def _is_of_test_rows(data: DataSection, role: str) -> bool:
    """Return whether what ``role`` (``data.sources[0] test.jsonl``) reads are test rows only."""
    source = data.sources[_index(role)]
    return getattr(source, "split", None) == TEST or role.rpartition(" ")[2].startswith(TEST)


def _index(role: str) -> int:
    return int(role.partition("[")[2].partition("]")[0])


SHOWN = 3
_PROMOTED = (Verdict.FIRST.value, Verdict.PROMOTED.value)


@dataclass(frozen=True, slots=True)
class News:
    """What a retraining would learn from. ``nothing``: why there is nothing to do; empty where
    there is. ``told``: what was found, as a sentence."""

    observed: Observed
    champion: Champion | None
    nothing: str
    told: str


def news(recipe: Recipe, store: ArtifactReader, observed: Observed) -> News:
    """Return what is new in ``observed`` for the champion of ``recipe``, which has the section
    ``retrain``."""
    assert recipe.retrain is not None, "the flow refuses a recipe without the section"
    reigning = champion(store, recipe.name)
    if reigning is None:
        return News(observed, None, "", f"'{recipe.name}' has no champion yet")
    unseen = _unseen(store, reigning, observed.inputs)
    fresh = tuple(each for each in observed.inputs if each.digest in unseen)
    of_champion = f"champion {reigning.number} of '{recipe.name}'"
    if not fresh:
        nothing = f"{of_champion} has learnt from all that there is"
        return News(observed, reigning, nothing, nothing)
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
    return News(observed, reigning, nothing, told)


def _unseen(store: ArtifactReader, entry: Champion, inputs: Sequence[Input]) -> set[str]:
    """Return the digests among ``inputs`` of no file or dataset that ``entry`` was made from."""
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
