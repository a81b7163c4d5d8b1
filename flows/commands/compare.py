"""``rl-pipeline compare``: runs side by side, and an exit code on what their evaluations say."""

import argparse
from collections.abc import Sequence
from typing import Any

from flows.commands.arguments import add_runs_folder
from flows.output import add_format, print_rows, tell
from rlcore.results.compare import Comparison, compare
from rlcore.results.paired import Condition, Difference
from rlcore.results.run import Run

WORSE = 3  # docs/reference/exit_codes.md
COLUMNS = (
    *("part", "name", "run", "value", "low", "high"),
    *("pairs", "higher", "lower", "unmatched_first", "unmatched_this", "text"),
)


def add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="+", metavar="RUN", help="two or more; the others are compared with the first"
    )
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar='"METRIC < NUMBER"',
        help='e.g. "accuracy < -0.01": exit with 3 where the whole 95 %% interval of a run\'s'
        " difference from the first is below it; > : above it. METRIC: accuracy,"
        " sampled_accuracy, score, length (tokens)",
    )
    add_runs_folder(parser)
    add_format(parser)
    parser.set_defaults(command=compare_runs)


def compare_runs(options: argparse.Namespace) -> int:
    """Print the comparison; return ``WORSE`` where a condition holds."""
    conditions = [Condition.parse(text) for text in options.fail_if]
    comparison = compare([Run.open(name, options.runs) for name in options.run])
    failures = comparison.failures(conditions)
    sentences = [_sentence(comparison.runs[0], *failure) for failure in failures]
    if options.format != "table":
        print_rows(to_rows(comparison, failures, sentences), COLUMNS, options.format)
    else:
        for number, (title, rows) in enumerate(comparison.sections()):
            print("\n" * (number > 0) + f"{title}:")
            print_rows(rows, list(rows[0]), "table")
    for sentence in sentences:
        tell(f"failed: {sentence}")
    return WORSE if failures else 0


def to_rows(
    comparison: Comparison,
    failures: Sequence[tuple[Condition, str, Difference]],
    sentences: Sequence[str],
) -> list[dict[str, Any]]:
    """Return one row per value, with the keys ``COLUMNS``; see docs/schemas."""
    rows: list[dict[str, Any]] = []

    def add(part: str, name: str, **values: Any) -> None:
        rows.append({**dict.fromkeys(COLUMNS), "part": part, "name": name, **values})

    for setting in comparison.settings:
        for run, text in zip(comparison.runs, setting.values, strict=True):
            add(setting.part, setting.name, run=run, text=text)
    for name, values in comparison.figures.items():
        for run, value in zip(comparison.runs, values, strict=True):
            add("training", name, run=run, value=value)
    for run, pairs in comparison.pairs.items():
        for pair in pairs:
            add("evaluation", pair.metric, run=run, pairs=pair.pairs, **of_difference(pair))
    for number, note in enumerate(comparison.notes, start=1):
        add("note", str(number), text=note)
    for (condition, run, pair), sentence in zip(failures, sentences, strict=True):
        add(
            "failed",
            condition.metric,
            run=run,
            text=sentence,
            pairs=pair.pairs,
            **of_difference(pair),
        )
    return rows


def of_difference(pair: Difference) -> dict[str, Any]:
    """Return what is printed of a difference, by column."""
    names = ("value", "low", "high", "higher", "lower", "unmatched_first")
    return {name: getattr(pair, name) for name in names} | {"unmatched_this": pair.unmatched_second}


def _sentence(first: str, condition: Condition, run: str, pair: Difference) -> str:
    return (
        f"{condition.text}: {pair.metric} of {run} is {pair.second:.4g}, that of {first}"
        f" {pair.first:.4g}; difference {pair.value:+.4g} on {pair.pairs} prompts, 95 % interval"
        f" [{pair.low:+.4g}, {pair.high:+.4g}]"
    )
