"""What a run would do with each stage, and why: the states, the causes, and their sentences."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """What a run would do with a stage."""

    CACHED = "cached"
    CONTINUES = "continues"
    RUNS = "runs"
    MAY_RUN = "may run"  # what it reads is made before it, and may come out as it was
    REFUSED = "refused"


class What(StrEnum):
    """Kind of a cause."""

    RECIPE = "recipe"
    VERSION = "version"
    CODE = "code"
    INPUT = "input"
    PARENT = "parent"
    NEW = "new"
    UNRECORDED = "unrecorded"
    REFRESH = "refresh"
    DAMAGE = "damage"
    OTHER_CODE = "other code"


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason why a stage runs. ``name``: a dotted key, a user's function, a library, a file, a
    role, a sentence, of a version why there is another; ``before`` and ``after``: the values, or
    digests, where there are any."""

    what: What
    name: str = ""
    before: Any = None
    after: Any = None

    def sentence(self) -> str:
        """Return the cause as it is written behind "because"."""
        change = f"{_short(self.before)} -> {_short(self.after)}"
        match self.what:
            case What.RECIPE:
                return f"{self.name} {change}"
            case What.VERSION:
                return f"version {change}: {self.name}"
            case What.CODE | What.INPUT | What.PARENT:
                known = self.before is not None and self.after is not None
                word = "changed" if known else "is new" if self.after is not None else "is gone"
                return f"{self.what} {self.name} {word} ({change})"
            case What.NEW:
                return "there is no result of it yet"
            case What.UNRECORDED:
                return "an earlier version made its result, and recorded no causes"
            case What.REFRESH:
                return "it is refreshed"
            case What.DAMAGE:
                return f"made again: {self.name}"
            case What.OTHER_CODE:
                return self.name


@dataclass(frozen=True, slots=True)
class StageState:
    """What a run would do with ``stage``. ``step``: the last one done of what it continues."""

    stage: str
    state: State
    step: int | None = None
    causes: tuple[Cause, ...] = ()
    note: str = ""

    def sentence(self) -> str:
        """Return the state in words."""
        causes = "; ".join(cause.sentence() for cause in self.causes)
        match self.state:
            case State.CONTINUES:
                assert self.step is not None, "what continues has a step"
                return f"continues at {self.step + 1}" + (f" ({self.note})" if self.note else "")
            case State.MAY_RUN:
                return f"runs if the result of {self.note} changes"
            case State.CACHED:
                return "cached" + (f" ({self.note})" if self.note else "")
            case _:
                return f"{self.state}, because {causes}" + (f"; {self.note}" if self.note else "")

    def to_json(self) -> dict[str, Any]:
        """Return the row that ``status RECIPE`` prints."""
        return {
            "stage": self.stage,
            "state": self.state.value,
            "step": self.step,
            "causes": [asdict(cause) for cause in self.causes],
            "sentence": self.sentence(),
        }


@dataclass(frozen=True, slots=True)
class InStore:
    """What a recipe's store holds of its run.

    ``states``: of each stage, in order; nothing where nobody has looked. ``unread``: why the store
    could not be asked, or empty.
    """

    states: tuple[StageState, ...] = ()
    unread: str = ""

    @property
    def stages(self) -> frozenset[str]:
        """The stages whose results a run would reuse."""
        return frozenset(one.stage for one in self.states if one.state is State.CACHED)


def state_lines(states: Iterable[StageState]) -> list[str]:
    """Return a line per stage."""
    return [f"{state.stage:<13}{state.sentence()}" for state in states]


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
