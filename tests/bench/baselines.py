"""The bounded figures of an earlier run, kept in git: a change that makes one worse is seen before
its bound breaks.

Only figures with a bound are compared that are ratios within one run, or shares, so that they hold
on other machines, but for noise.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.measures import Measure

FILE = Path(__file__).with_name("baselines.json")
NOISE = 0.25  # a figure that is worse by no more than this share of its baseline is as good

Found = Mapping[str, Sequence[Measure]]  # benchmark -> what it measured


def worse(found: Found) -> list[str]:
    """Return a sentence for each bounded figure that is worse than its baseline by more than NOISE;
    one without a baseline is not compared."""
    known = _read()
    sentences = []
    for name, measures in found.items():
        for each in measures:
            before = known.get(name, {}).get(each.name)
            if before is not None and _is_worse(each, before):
                sentences.append(
                    f"{name}: {each.name} = {each.value:g} was {before:g}: worse by more than"
                    f" {NOISE:.0%}"
                )
    return sentences


def record(found: Found) -> None:
    """Make the bounded figures of ``found`` the baselines; those of other benchmarks stay."""
    known = _read()
    for name, measures in found.items():
        known[name] = {each.name: each.value for each in measures if _is_kept(each)}
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _read() -> dict[str, dict[str, float]]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def _is_kept(measure: Measure) -> bool:
    return _has_bound(measure) and not measure.is_absolute


def _has_bound(measure: Measure) -> bool:
    return measure.least is not None or measure.most is not None


def _is_worse(measure: Measure, before: float) -> bool:
    if measure.least is not None:
        return measure.value < before * (1 - NOISE)
    return measure.most is not None and measure.value > before * (1 + NOISE)
