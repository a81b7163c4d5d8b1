"""What a recipe would read now: hub datasets at the commits they are at, files by their content."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlcore.data.inputs import data_digests
from rlcore.data.sources import count_rows, read_file
from rlcore.models.files import hub_unreachable
from rlcore.store.outside import files_read
from schemas.data import AimeSource, DataSection, Gsm8kSource, HubSource, MathSource
from schemas.errors import UserError

HUB = "hf://"
TEST = "test"


@dataclass(frozen=True, slots=True)
class Input:
    """A file or hub dataset that training would read: who reads it, where, and what it holds."""

    source: str
    url: str
    digest: str

    @property
    def is_hub(self) -> bool:
        """Whether it is a dataset of the hub, whose digest is a commit."""
        return self.url.startswith(HUB)


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


def observe(data: DataSection, newest_commit: Callable[[str], str] | None = None) -> Observed:
    """Return what ``data`` stands for now.

    ``newest_commit``: of a dataset of the hub, by name (default: what the hub answers). Raises
    UserError for a file that is missing, a pattern without files, and a dataset that the hub does
    not have.
    """
    pins: dict[str, str] = {}
    notes: list[str] = []
    open_names = _unpinned(data)
    unreachable = hub_unreachable() if open_names and newest_commit is None else ""
    ask = newest_commit or _newest_commit
    for index, name in open_names.items():
        if isinstance(data.sources[index], Gsm8kSource):
            why = "a source of kind gsm8k cannot be pinned"
            notes.append(f"hub dataset '{name}' counts as unchanged: {why}")
        elif unreachable:
            notes.append(f"hub dataset '{name}' counts as unchanged: {unreachable}")
        else:
            pins[f"data.sources.{index}.revision"] = ask(name)
    sources = tuple(
        source
        if (commit := pins.get(f"data.sources.{index}.revision")) is None
        else source.model_copy(update={"revision": commit})
        for index, source in enumerate(data.sources)
    )
    read = files_read(data_digests(data.model_copy(update={"sources": sources})))
    inputs = tuple(Input(*each) for each in read if not _is_of_test_rows(data, each[0]))
    return Observed(inputs, pins, tuple(notes))


def new_rows(data: DataSection, inputs: Sequence[Input]) -> int | None:
    """Return how many rows the files of ``inputs`` have, at most ``limit`` of each; None where one
    is a dataset of the hub, whose new rows are not known before it is fetched."""
    total = 0
    for each in inputs:
        if each.is_hub:
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
    from huggingface_hub.errors import HfHubHTTPError

    try:
        commit = HfApi().dataset_info(name).sha
    except (HfHubHTTPError, OSError) as error:
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
