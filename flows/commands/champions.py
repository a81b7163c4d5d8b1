"""``rl-pipeline champions``: the champions of a recipe; go back to one, or name one by hand."""

import argparse
from dataclasses import asdict
from typing import Any

from flows import local
from flows.commands.arguments import add_runs_folder, add_store_root, check_store
from flows.output import add_format, print_rows
from rlcore.results.named_artifacts import subject
from rlcore.retraining.champions import (
    BY_HAND,
    ROLLED_BACK,
    Champion,
    add_champion,
    champion,
    decisions,
    entries_of,
    entry_of,
    verified_export,
)
from rlcore.store.artifacts import ArtifactStore
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError

ROLLBACK, PROMOTE = "rollback", "promote"
COLUMNS = (
    *("name", "number", "cause", "made", "prompt_set", "metric", "gain", "low", "high", "prompts"),
    *("look", "export_key", "export_sha256", "decision_key", "restored", "by"),
)
SHOWN = ("number", "cause", "made", "gain", "low", "high", "prompts", "look", "export_sha256")
DIGITS = 12


def add_champions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the recipe's name")
    parser.add_argument(
        "action",
        nargs="?",
        choices=(ROLLBACK, PROMOTE),
        help="make an earlier champion, or any export, the champion: a new entry either way",
    )
    parser.add_argument(
        "ref",
        nargs="?",
        metavar="REF",
        help="rollback: the number of an entry, or digits of its export's digest; promote: a run,"
        " export/KEY, or digits of a digest",
    )
    add_store_root(parser)
    add_runs_folder(parser)
    add_format(parser)
    parser.set_defaults(command=champions_command)


def champions_command(options: argparse.Namespace) -> int:
    """Print the entries, the champion last, after the change that was asked for.

    Raises UserError for a name or REF that there is not, and for an export that is not whole.
    """
    if (options.action is None) != (options.ref is None):
        raise UserError(f"champions {options.name} {options.action}: name the REF to go to")
    check_store(options.store)
    store = ArtifactStore(options.store, writer="rl-pipeline champions")
    if options.action is not None:
        _change(store, options)
    entries = entries_of(store, options.name)
    rows = _rows(store, options.name, entries)
    if options.format != "table":
        print_rows(rows, COLUMNS, options.format)
        return 0
    minutes = len("2026-01-31 12:00")
    short = [
        {
            **row,
            "made": row["made"][:minutes].replace("T", " "),
            "export_sha256": row["export_sha256"][:DIGITS],
        }
        for row in rows
    ]
    print_rows(short, SHOWN, "table")
    last = entries[-1]
    print(f"Champion {last.number}: {store.root}/export/{last.export_key}")
    return 0


def _rows(store: ArtifactStore, name: str, entries: list[Champion]) -> list[dict[str, Any]]:
    """Return a row per entry, with what the gate found on the primary set, its first."""
    made: dict[str, dict[str, Any]] = {}
    for row in decisions(store, name).iter_rows(named=True):
        made.setdefault(row["key"], row)
    rows = []
    for entry in entries:
        decided = made.get(entry.decision_key or "", {})
        known = {key: decided.get(key) for key in COLUMNS} | asdict(entry)
        rows.append({key: known[key] for key in COLUMNS})
    return rows


def _change(store: ArtifactStore, options: argparse.Namespace) -> None:
    now = champion(store, options.name)
    after = 0 if now is None else now.number
    if options.action == ROLLBACK:
        old = entry_of(store, options.name, options.ref)
        if now is not None and old.export_sha256 == now.export_sha256:
            raise UserError(
                f"champions {options.name} rollback {options.ref}: that model is the champion;"
                " name an earlier entry"
            )
        export, cause, restored = verified_export(store, old), ROLLED_BACK, old.number
    else:
        export, cause, restored = _export(store, options), BY_HAND, None
    entry = add_champion(
        store, options.name, after=after, export=export, cause=cause, restored=restored
    )
    _tell(entry)


def _export(store: ArtifactStore, options: argparse.Namespace) -> ArtifactRef:
    """Return the export that REF names. Raises UserError for another artifact, and where it is in
    another store."""
    reader, (ref,) = subject(options.ref, options.store, options.runs)
    if ref.kind != "export":
        raise UserError(
            f"champions {options.name} promote {options.ref}: that is no export but"
            f" {ref.kind}/{ref.key}; name a run that has ended, or export/KEY"
        )
    if reader.root != store.root:
        raise UserError(
            f"champions {options.name} promote {options.ref}: its export is in the store"
            f" {reader.root}; name that one with --store"
        )
    return ref


def _tell(entry: Champion) -> None:
    """Emit the event where a server of this project is up."""
    if local.attach(local.HOME):
        from tasks.runtime import alerts

        event = alerts.ROLLED_BACK if entry.cause == ROLLED_BACK else alerts.PROMOTED
        text = f"champion {entry.number} is {entry.export_key}, {entry.cause}"
        alerts.tell(event, entry.name, text, asdict(entry))
