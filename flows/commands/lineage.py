"""``rl-pipeline lineage``: what an artifact was made from, or what was made from it."""

import argparse
from typing import Any

from flows.commands.arguments import add_store_root, check_store
from flows.output import print_json, print_rows, tell, without_path
from rlcore.results.lineage import Node, Trace, fold, trace
from rlcore.results.named_artifacts import subject
from rlcore.results.provenance import MICRO_BATCH_TOKENS, RESHARDED, TRUSTS

COLUMNS = ("depth", "role", "kind", "key", "count", "rows", "sha256", "finding")
SHOWN = 12  # digits of a digest
ITERATIONS = "iterations"  # kind of the records of RL


def add_lineage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject",
        metavar="RUN|KIND/KEY|DIGEST|DIR|FILE",
        help="a run, e.g. latest; an artifact; six or more digits of a digest; a model's directory;"
        " a file that runs read, or digits of its sha256, with --forward",
    )
    parser.add_argument("--forward", action="store_true", help="what was made from it instead")
    parser.add_argument(
        "--rows",
        choices=("folded", "all"),
        default="folded",
        help="of a table: the records of iterations together, or each (default: %(default)s)",
    )
    parser.add_argument(
        "--check-inputs",
        action="store_true",
        help="return 1 where a file that was read has changed since or is gone, too",
    )
    parser.add_argument(
        "--format",
        choices=("table", "json"),
        default="table",
        help="json: every artifact, the recipe's text, code and inputs (default: %(default)s)",
    )
    add_store_root(parser)
    parser.set_defaults(command=lineage)


def lineage(options: argparse.Namespace) -> int:
    """Print the lineage; return 1 where an artifact of it is damaged or missing, and with
    ``--check-inputs`` where a file that was read is not what it was."""
    check_store(options.store)
    store, start = subject(options.subject, options.store)
    found = trace(store, start, forward=options.forward)
    if options.format == "json":
        print_json(_document(options, found))
    else:
        _print_table(found, folded=options.rows == "folded")
    for node in found.problems:
        tell(f"error: {node.name}: {node.problem}")
    if found.unsealed:
        tell(
            f"{len(found.unsealed)} of {len(found.nodes)} manifests have no seal, the first that of"
            f" {found.unsealed[0].name}: they were written by an earlier version, or edited; what"
            " they say of parents and producers is not proven"
        )
    for one in found.moved:
        was = f"its sha256 was {one['digest'][:SHOWN]}"
        tell(f"{one['url']}: {one['now']} since it was read, when {was}")
    return 1 if found.problems or (options.check_inputs and found.moved) else 0


def _document(options: argparse.Namespace, found: Trace) -> dict[str, Any]:
    return {
        "subject": options.subject,
        "direction": "forward" if options.forward else "backward",
        "artifacts": [_artifact(node) for node in found.nodes],
        "inputs": found.inputs,
        "recipes": found.recipes,
        "code": found.code,
    }


def _artifact(node: Node) -> dict[str, Any]:
    made = node.manifest
    parents = {} if made is None else made.parents
    metadata = {} if made is None else made.metadata
    names = ("recipe_digest", "code_fingerprint", "producer", "created_at")
    return {
        "depth": node.depth,
        "role": node.role,
        "kind": node.ref.kind,
        "key": node.ref.key,
        "sha256": node.ref.sha256,
        "rows": node.ref.rows,
        **{name: None if made is None else getattr(made, name) for name in names},
        "parents": {role: f"{parent.kind}/{parent.key}" for role, parent in parents.items()},
        "micro_batch_tokens": metadata.get(MICRO_BATCH_TOKENS),
        "resharded": metadata.get(RESHARDED),
        "problem": node.problem,
        "note": node.note,
    }


def _print_table(found: Trace, *, folded: bool) -> None:
    groups = fold(found.nodes) if folded else [([n], n.ref.key) for n in found.nodes]
    rows = [
        {
            "depth": nodes[0].depth,
            "role": nodes[0].role,
            "kind": nodes[0].ref.kind,
            "key": name,
            "count": len(nodes),
            "rows": sum(sum(node.ref.rows.values()) for node in nodes) or None,
            "sha256": nodes[0].ref.sha256[:SHOWN] if len(nodes) == 1 else None,
            "finding": without_path(nodes[0].problem or nodes[0].note or "", nodes[0].name) or None,
        }
        for nodes, name in groups
    ]
    print_rows(rows, COLUMNS, "table")
    for (written, used), nodes in found.smaller_passes.items():
        first = min((n.name for n in nodes if n.ref.kind == ITERATIONS), default=nodes[0].name)
        print(
            f"\nhardware.learner.micro_batch_tokens = {used} instead of {written} from {first} on,"
            " as a learner had run out of memory"
        )
    for change, nodes in found.resharded.items():
        stages = ", ".join(sorted({node.ref.kind for node in nodes}))
        print(f"\nhardware.learner: {change} ({stages})")
    if found.inputs:
        print("\nread from outside the store:")
        shown = [{**one, "sha256": one["digest"][:SHOWN]} for one in found.inputs]
        print_rows(shown, ("source", "now", "sha256", "url"), "table")
    dirty = {True: ", with changes", False: "", None: ", no checkout"}
    commits = dict.fromkeys(f"commit {code['commit']}{dirty[code['dirty']]}" for code in found.code)
    for commit in commits:
        print(f"\ncode: {commit}", end="")
    for recipe in found.recipes:
        trusted = ", ran the model's own code (trust_remote_code)" if recipe.get(TRUSTS) else ""
        digest = recipe["digest"][:SHOWN]
        print(f"\n\nrecipe {recipe['name']}, seed {recipe['seed']}, {digest}{trusted}:")
        print(recipe["text"] if not folded else "  its text: --rows all or --format json")
