"""Runs a benchmark by name: a table of what it measured on stderr, the same as JSON on stdout.

Exit code 1 if a bound is broken, 2 if there is no such benchmark or an input is missing.

python -m tests.bench rewards
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from schemas.errors import UserError, did_you_mean
from tests.bench.measures import Measure, table

# Name -> module:function, which returns what it measured.
BENCHMARKS = {
    "episodes": "tests.bench.episodes:measures",
    "grpo": "tests.bench.grpo:small",
    "grpo-large": "tests.bench.grpo:large",
    "rewards": "tests.bench.rewards:measures",
    "scoring": "tests.bench.scoring:measures",
    "sql": "tests.bench.sql:measures",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("name", help=f"one of {', '.join(BENCHMARKS)}")
    name = parser.parse_args(arguments).name
    try:
        if name not in BENCHMARKS:
            raise UserError(
                f"BENCH = {name!r} is not a benchmark; there are {', '.join(BENCHMARKS)}"
                f"{did_you_mean(name, BENCHMARKS)}"
            )
        module, function = BENCHMARKS[name].split(":")
        measures: Callable[[], list[Measure]] = getattr(import_module(module), function)
        found = measures()
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(found), file=sys.stderr)
    print(json.dumps({"benchmark": name, "measures": [each.as_json() for each in found]}, indent=1))
    return 0 if all(each.met for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
