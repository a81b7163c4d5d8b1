"""Runs benchmarks by name: a table of what they measured on stderr, the same as JSON on stdout and
in ``runs/bench.json``.

python -m tests.bench rewards
python -m tests.bench speed [--figure FILE.png] [--record]

``speed`` stands for all that compare this project with peers and with the machine's own rates.
Exit code 1 if a bound is broken or a figure is worse than its baseline by more than noise, 2 if
there is no such benchmark or an input is missing.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from flows.paths import ROOT
from schemas.errors import UserError, did_you_mean
from tests.bench import baselines
from tests.bench.figure import draw
from tests.bench.measures import Measure, table

# Name -> module:function, which returns what it measured.
BENCHMARKS = {
    "adapter": "tests.bench.adapter:measures",
    "episodes": "tests.bench.episodes:measures",
    "growth": "tests.bench.growth:measures",
    "gpu": "tests.bench.gpu:measures",
    "grpo": "tests.bench.grpo:small",
    "grpo-large": "tests.bench.grpo:large",
    "iteration": "tests.bench.iteration:measures",
    "iteration-beside": "tests.bench.iteration:beside",
    "iteration-large": "tests.bench.iteration:checkpoints",
    "learning": "tests.bench.learning:measures",
    "logprobs": "tests.bench.logprobs:measures",
    "memory": "tests.bench.memory:measures",
    "preference": "tests.bench.preference:measures",
    "preparation": "tests.bench.preparation:measures",
    "ragged": "tests.bench.ragged:measures",
    "rewards": "tests.bench.rewards:measures",
    "sampling": "tests.bench.sampling:measures",
    "scoring": "tests.bench.scoring:measures",
    "size": "tests.bench.size:measures",
    "sql": "tests.bench.sql:measures",
    "supervised": "tests.bench.supervised:measures",
    "weights": "tests.bench.weights:measures",
}
GROUPS = {
    "speed": (
        *("grpo", "grpo-large", "growth", "iteration", "iteration-large"),
        *("logprobs", "ragged", "sampling", "supervised"),
    ),
}
RESULTS = ROOT / "runs" / "bench.json"


def main(arguments: Sequence[str] | None = None) -> int:
    known = [*GROUPS, *BENCHMARKS]
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--figure", type=Path, help="draw the comparisons with peers here")
    parser.add_argument("--record", action="store_true", help="make the figures the baselines")
    options = parser.parse_args(arguments)
    try:
        names = [one for name in options.names for one in GROUPS.get(name, (name,))]
        found = {name: _measure(name) for name in dict.fromkeys(names)}
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    measures = [each for some in found.values() for each in some]
    print(table(measures), file=sys.stderr)
    worse = baselines.worse(found)
    print("".join(f"{line}\n" for line in worse), end="", file=sys.stderr)
    said = json.dumps(
        {name: [each.as_json() for each in some] for name, some in found.items()}, indent=1
    )
    print(said)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(said, encoding="utf-8")
    if options.figure:
        draw(measures, options.figure)
    if options.record:
        baselines.record(found)
        worse = []
    return 0 if all(each.met for each in measures) and not worse else 1


def _measure(name: str) -> list[Measure]:
    if name not in BENCHMARKS:
        known = [*GROUPS, *BENCHMARKS]
        raise UserError(
            f"BENCH = {name!r} is not a benchmark; there are {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )
    module, function = BENCHMARKS[name].split(":")
    measures: Callable[[], list[Measure]] = getattr(import_module(module), function)
    return measures()


if __name__ == "__main__":
    sys.exit(main())
