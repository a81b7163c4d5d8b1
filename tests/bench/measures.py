"""What a benchmark measured, and the bound that it must keep."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure. ``least`` and ``most`` bound it, both included; without either it is shown
    only. ``is_speedup``: it says how many times as fast as a peer this project is. ``is_absolute``:
    it is of the machine as much as of the code, so that it has no baseline."""

    name: str
    value: float
    least: float | None = None
    most: float | None = None
    note: str = ""
    is_speedup: bool = False
    is_absolute: bool = False

    @property
    def met(self) -> bool:
        """Whether the value is a number within its bounds."""
        above = self.least is None or self.value >= self.least
        return above and (self.most is None or self.value <= self.most)

    def as_json(self) -> dict[str, Any]:
        """Return the fields and ``met``, JSON-ready."""
        return {**asdict(self), "met": self.met}


def table(measures: Sequence[Measure]) -> str:
    """Return the measures in aligned columns: name, value, bound, verdict, note."""
    rows = [("measure", "value", "bound", "", "")]
    for each in measures:
        bounds = [f">= {each.least:g}"] if each.least is not None else []
        bounds += [f"<= {each.most:g}"] if each.most is not None else []
        verdict = ("met" if each.met else "BROKEN") if bounds else ""
        rows.append((each.name, f"{each.value:g}", ", ".join(bounds), verdict, each.note))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    padded = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in padded)
