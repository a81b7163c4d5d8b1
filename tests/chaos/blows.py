"""A blow, what came of it, and which blows a run of ``make chaos`` deals out."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice

from tests.chaos import victims

INLINE, DEPLOYED = "inline", "deployed"
# What befalls one process that holds learner and engine, most often what costs least.
INLINE_KINDS = (
    *("killed", "killed-at", "terminated", "stopped", "disk-full", "bucket-silent", "killed"),
    *("killed-at", "killed", "terminated", "killed", "stopped", "killed", "killed-at", "killed"),
)
HARASSED = "harassed"  # the engine is killed again and again
DEPLOYED_KINDS = (
    *("engine", "flow", "stopped-learner", "stopped-raylet", "raylet", "learner", "stopped-gcs"),
    *("server", "reward", "stopped-engine", "gcs", "worker"),
)


@dataclass
class Blow:
    """One blow and what came of it.

    ``where``: inline or deployed. ``component``: what was hit, and how. ``point``: when.
    ``outcome``: what the run did, in a few words. ``equal``: whether the weights in the end are
    those of an undisturbed run; None while there are none. ``orphans``: processes and shared memory
    of the run that were left, a line each. ``seconds``: from the blow until the run continued or,
    if it ended, had ended; with the rerun where there was one of its own. ``faults``: what should
    not be. ``log``: where the run's output is.
    """

    where: str
    component: str
    point: str = ""
    outcome: str = ""
    equal: bool | None = None
    orphans: list[str] = field(default_factory=list)
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    log: str = ""

    @property
    def held(self) -> bool:
        """Whether nothing was lost, nothing left behind, and all was as it should be."""
        return bool(self.equal) and not self.orphans and not self.faults

    def note(self, what: str) -> None:
        """Add to the outcome."""
        self.outcome = ", ".join(filter(None, [self.outcome, what]))

    def compare(self, found: str, expected: str) -> None:
        """Note whether the digest of the weights is the expected one."""
        self.equal = found == expected
        if not self.equal:
            self.faults.append(f"other weights: {found[:12]}, not {expected[:12]}")


def plan(number: int) -> tuple[list[str], list[str]]:
    """Return the kinds of ``number`` blows: three quarters inline, the rest deployed. Of those, one
    is a run that is harassed; it comes last."""
    deployed = number // 4
    inline = list(islice(cycle(INLINE_KINDS), number - deployed))
    others = list(islice(cycle(DEPLOYED_KINDS), max(0, deployed - 1)))
    return inline, [*others, *[HARASSED][:deployed]]


def of_victims(named: list[str], points: int) -> list[str]:
    """Return ``points`` blows of each victim; of those that are stopped one, as it takes long."""
    return [victim for victim in named for _ in range(1 if victim in victims.STOPPED else points)]


def generator(seed: int, kind: str, number: int) -> random.Random:
    """Return the source of random choices of one blow, the same however many there are."""
    return random.Random(f"{seed}/{kind}/{number}")


def table(blows: list[Blow]) -> Iterator[str]:
    """Yield the lines of a table of blows in Markdown."""
    rows = [("point", "component", "outcome", "digest equal", "orphans", "seconds")]
    rows += [row(blow) for blow in blows]
    widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
    for number, line in enumerate(rows):
        yield f"| {' | '.join(map(str.ljust, line, widths))} |"
        if number == 0:
            yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"


def row(blow: Blow) -> tuple[str, ...]:
    """Return a blow as the cells of its row."""
    equal = {True: "yes", False: "NO", None: "none"}[blow.equal]
    outcome = "; ".join([blow.outcome, *(f"FAULT: {fault}" for fault in blow.faults)])
    orphans = str(len(blow.orphans))
    return (
        blow.point,
        f"{blow.where} {blow.component}",
        " ".join(outcome.split()).replace("|", "/"),
        equal,
        orphans,
        f"{blow.seconds:.0f}",
    )
