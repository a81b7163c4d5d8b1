"""``rl-pipeline store``: what the store holds, what of it is kept, what is damaged."""

import argparse
from collections.abc import Sequence
from typing import Any

from flows.commands.arguments import add_store_root, check_store
from flows.output import add_format, print_rows, tell, without_path
from rlcore.results.named_artifacts import subject
from rlcore.results.retention import (
    RetentionSettings,
    by_kind,
    by_run,
    check_all,
    collect,
    leftovers,
    make_plan,
    survey,
)
from rlcore.results.roots import PINS, pin, unpin
from rlcore.store.artifacts import ArtifactStore
from schemas.artifacts import ArtifactRef

KINDS = ("kind", "artifacts", "bytes", "reclaimable", "stays")
RUNS = ("recipe", "run", "began", "artifacts", "bytes", "alone", "reclaimable", "kept")
REMOVED = ("kind", "key", "run", "bytes", "made", "reason")
DAMAGED = ("kind", "key", "fault")
KIB = 1024
DATE_CHARS = len("2026-01-31")


def add_store(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    usage = actions.add_parser("usage", help="bytes, and how many of them gc would remove")
    usage.add_argument(
        "--by", choices=("kind", "run"), default="kind", help="(default: %(default)s)"
    )
    _add_kept(usage)
    usage.set_defaults(command=_usage)
    for name, command, text in (
        ("pin", _pin, "keep an artifact, and all that it was made from, until it is unpinned"),
        ("unpin", _unpin, "let go of a pinned artifact"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument(
            "subject",
            metavar="RUN|KIND/KEY|DIGEST|DIR",
            help="a run: its last result; an artifact; digits of a digest; a model's directory",
        )
        add_store_root(action)
        action.set_defaults(command=command)
    gc = actions.add_parser("gc", help="remove what no root needs; without --yes only say what")
    gc.add_argument("--yes", action="store_true", help="remove it")
    _add_kept(gc)
    gc.set_defaults(command=_gc)
    verify = actions.add_parser("verify", help="read every artifact, and name what is damaged")
    add_store_root(verify)
    add_format(verify)
    verify.set_defaults(command=_verify)


def _add_kept(parser: argparse.ArgumentParser) -> None:
    """Add what says how much is kept, and how it is printed."""
    parser.add_argument(
        "--keep-runs",
        type=int,
        default=5,
        metavar="N",
        help="completed ones of each recipe (default: 5)",
    )
    parser.add_argument(
        "--keep-champions", type=int, metavar="N", help="of each recipe (default: all)"
    )
    dropped = parser.add_mutually_exclusive_group()
    dropped.add_argument(
        "--keep-rollouts",
        type=int,
        metavar="N",
        help="newest iterations of a run with rollouts, rewards, advantages (default: what the"
        " recipe says in rl.checkpoint.keep_rollouts)",
    )
    dropped.add_argument(
        "--drop-rollouts",
        action="store_const",
        const=0,
        dest="keep_rollouts",
        help="of no iteration, but for runs that are not done",
    )
    parser.add_argument(
        "--least-age-h",
        type=float,
        default=1.0,
        metavar="HOURS",
        help="what was made within them is kept (default: %(default)s)",
    )
    add_store_root(parser)
    add_format(parser)


def _settings(options: argparse.Namespace) -> RetentionSettings:
    return RetentionSettings(
        keep_runs=options.keep_runs,
        keep_champions=options.keep_champions,
        keep_rollouts=options.keep_rollouts,
        least_age_h=options.least_age_h,
    )


def _open(options: argparse.Namespace) -> ArtifactStore:
    check_store(options.store)
    return ArtifactStore(options.store, writer=f"rl-pipeline store of {options.store}")


def _usage(options: argparse.Namespace) -> int:
    store, settings = _open(options), _settings(options)
    plan = survey(store, settings)
    if options.by == "kind":
        _print(by_kind(store, plan), KINDS, options.format)
    else:
        _print(by_run(plan), RUNS, options.format)
    for damage in plan.damage:
        tell(f"warning: {damage}")
    roots = f"roots: {len(plan.roots)}" if plan.roots else "no root, so gc would refuse"
    tell(
        f"{text_of(plan.bytes_of(plan.manifests))}, of which rl-pipeline store gc would remove"
        f" {text_of(plan.bytes_of(plan.removed))}; {roots}"
    )
    return 0


def _pin(options: argparse.Namespace) -> int:
    store, ref = _named(options)
    pin(store, ref)
    print(f"pinned: {ref.kind}/{ref.key}, and all that it was made from")
    return 0


def _unpin(options: argparse.Namespace) -> int:
    store, place = _open(options), options.subject
    if place not in store.keys(PINS):
        store, ref = _named(options)
        place = f"{ref.kind}/{ref.key}"
    unpin(store, place)
    print(f"unpinned: {place}")
    return 0


def _named(options: argparse.Namespace) -> tuple[ArtifactStore, ArtifactRef]:
    """Return the store and the artifact that a person named. Raises UserError for none."""
    _open(options)
    reader, (ref, *_) = subject(options.subject, options.store)
    return ArtifactStore(reader.root), ref


def _gc(options: argparse.Namespace) -> int:
    store, settings = _open(options), _settings(options)
    plan = make_plan(store, settings)
    rows = [
        {
            "kind": made.kind,
            "key": made.key,
            "run": plan.run_of(place),
            "bytes": plan.bytes_of([place]),
            "made": made.created_at,
            "reason": reason,
        }
        for place, reason in plan.removed.items()
        for made in [plan.manifests[place]]
    ]
    if options.format == "table":
        _print(_folded(rows), REMOVED, "table")
    else:
        print_rows(rows, REMOVED, options.format)
    if not options.yes:
        left = sum(leftovers(store).values())
        more = f" and {text_of(left)} of leftovers" if left else ""
        tell(
            f"would remove {len(rows)} artifacts, {text_of(plan.bytes_of(plan.removed))} of"
            f" {text_of(plan.bytes_of(plan.manifests))}{more}; nothing was removed: add --yes"
        )
        return 0
    done = collect(store, plan, settings, tell)
    tell(
        f"removed {done.artifacts} artifacts, {text_of(done.bytes)}, and"
        f" {text_of(done.leftover_bytes)} of leftovers; their manifests are kept"
    )
    return 0


def _folded(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for the records of a run's iterations of a kind."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        run, slash, _ = row["key"].rpartition("/")
        groups.setdefault((row["kind"], run if slash else row["key"], row["reason"]), []).append(
            row
        )
    return [
        {
            "kind": kind,
            "key": key if len(found) == 1 and found[0]["key"] == key else f"{key}/ ({len(found)})",
            "run": found[0]["run"],
            "bytes": sum(row["bytes"] for row in found),
            "made": max(row["made"] for row in found)[:DATE_CHARS],
            "reason": reason,
        }
        for (kind, key, reason), found in groups.items()
    ]


def _verify(options: argparse.Namespace) -> int:
    checked = list(check_all(_open(options)))
    damaged = [
        {
            "kind": one.kind,
            "key": one.key,
            "fault": without_path(one.fault, f"{one.kind}/{one.key}"),
        }
        for one in checked
        if one.fault is not None
    ]
    if damaged or options.format != "table":
        print_rows(damaged, DAMAGED, options.format)
    tell(
        f"{len(checked)} artifacts read, {text_of(sum(one.bytes for one in checked))} whole,"
        f" {len(damaged)} damaged"
    )
    return 1 if damaged else 0


def _print(rows: Sequence[dict[str, Any]], columns: Sequence[str], form: str) -> None:
    """Print rows; bytes with a unit in a table."""
    if form == "table":
        sizes = ("bytes", "alone", "reclaimable")
        rows = [
            {name: text_of(row[name]) if name in sizes else row[name] for name in columns}
            for row in rows
        ]
    print_rows(rows, columns, form)


def text_of(size: int) -> str:
    """Return bytes as a person reads them.

    >>> text_of(999), text_of(5 * 1024**3)
    ('999 B', '5.0 GiB')
    """
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= KIB and len(units) > 1:
        value /= KIB
        del units[0]
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"
