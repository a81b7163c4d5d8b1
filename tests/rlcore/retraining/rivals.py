"""A store with exports and evaluations of planted champions and candidates, made by hand; as a
script, one gate and promotion in a process that can be killed between two steps.

    python -m tests.rlcore.retraining.rivals STORE CANDIDATE [STEP]

STEP: before or after, and the kind of the artifact at whose writing the process kills itself.
"""

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import polars as pl

from rlcore.evaluation.win_rate import NoEvidence
from rlcore.retraining.champions import Champion, add_champion, champion
from rlcore.retraining.gate_records import GateDecision, Side, ask
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from schemas.retrain import RetrainSection
from tests.rlcore.results.evaluated import completions

NAME = "tiny"
ROWS = 200
SHARES = {"equal": 0.5, "better": 0.8, "worse": 0.2}  # of right answers


def right_answers(share: float, rows: int = ROWS, test: str = "u") -> dict[str, bool]:
    """Return which prompts of the test set ``test`` are answered rightly, by uid."""
    return {f"{test}{n:03d}": n % 10 < 10 * share for n in range(rows)}


def plant(
    store: ArtifactStore, key: str, answers: Mapping[str, bool]
) -> tuple[ArtifactRef, ArtifactRef]:
    """Put an export ``key`` and its evaluation into the store and return both."""
    made = Lineage("r", "c")
    drawn, results = completions(answers)
    tables = {"completions": drawn, "eval_results": results}
    evaluation = store.put("evaluation", f"{key}-evaluation", tables=tables, lineage=made)
    frame = pl.DataFrame(
        {"stage": ["rl"], "step": pl.Series([1], dtype=pl.Int64), "name": [key], "value": [1.0]}
    )
    export = store.put("export", key, tables={"metrics": frame}, lineage=made)
    return export, evaluation


def gate(
    store: ArtifactStore,
    key: str,
    answers: Mapping[str, bool],
    champion_evaluation: ArtifactRef | None = None,
    won: pl.DataFrame | NoEvidence | None = None,
    **section: Any,
) -> tuple[GateDecision, Champion | None]:
    """Return what the gate says of the export ``key``, and the champion that there was, which is
    judged by its own evaluation unless another is given."""

    def judged(ours: Side, theirs: Side) -> pl.DataFrame:
        if isinstance(won, pl.DataFrame):
            return won
        assert won is not None
        raise won

    export, evaluation = plant(store, key, answers)
    reigning = champion(store, NAME)
    of_champion = None
    if reigning is not None:
        own = store.find("evaluation", f"{reigning.export_key}-evaluation")
        found = champion_evaluation or own
        assert found is not None
        of_champion = Side(found, "rl")
    outcome = ask(
        store,
        NAME,
        RetrainSection(**section),
        candidate=export,
        side=Side(evaluation, "rl"),
        champion=reigning,
        champion_side=of_champion,
        inputs_digest=f"inputs of {key}",
        won=None if won is None else judged,
    )
    return outcome, reigning


def promote(store: ArtifactStore, outcome: GateDecision, reigning: Champion | None) -> Champion:
    """Make the candidate of ``outcome`` the champion after ``reigning``."""
    export = store.find("export", outcome.rows[0]["candidate"])
    assert export is not None
    return add_champion(
        store,
        NAME,
        after=0 if reigning is None else reigning.number,
        export=export,
        cause=outcome.verdict.value,
        decision=outcome.ref,
    )


def _killed_at(store: ArtifactStore, step: str) -> None:
    when, _, kind = step.partition(" ")
    put = store.put

    def killed(of: str, *arguments: Any, **named: Any) -> ArtifactRef:
        if (when, kind) == ("before", of):
            os.kill(os.getpid(), signal.SIGKILL)
        ref = put(of, *arguments, **named)
        if (when, kind) == ("after", of):
            os.kill(os.getpid(), signal.SIGKILL)
        return ref

    store.put = killed  # type: ignore[method-assign]


if __name__ == "__main__":
    opened = ArtifactStore(sys.argv[1])
    if len(sys.argv) > 3:
        _killed_at(opened, sys.argv[3])
    said, before = gate(opened, sys.argv[2], right_answers(SHARES["better"]))
    if said.promotes:
        promote(opened, said, before)
    print(said.sentence)
