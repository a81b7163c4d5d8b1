"""The gate of retraining over two evaluations in a store: same rows, looks counted, decision kept.

What is decided, and how, is in ``rlcore.evaluation.promotion_rule``.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import polars as pl

from rlcore.evaluation.promotion_rule import (
    EVEN,
    Decision,
    Verdict,
    alpha_of,
    check_sets,
    decide,
)
from rlcore.evaluation.win_rate import NoEvidence
from rlcore.results.paired import prompt_values, with_question
from rlcore.retraining.champions import (
    DECISIONS,
    Champion,
    decision_lock,
    looks,
    prompts_digest,
)
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.store.reader import ArtifactReader
from rlcore.store.tables import polars_schema
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.retrain import WIN_RATE, RetrainSection

GREEDY = "greedy"
_KEY_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Side:
    """One model's evaluation: the artifact, and the checkpoint whose rows are its."""

    evaluation: ArtifactRef
    checkpoint: str


@dataclass(frozen=True, slots=True)
class GateDecision:
    """A decision as it is kept."""

    ref: ArtifactRef
    verdict: Verdict
    sentence: str
    rows: Sequence[Mapping[str, Any]]

    @property
    def promotes(self) -> bool:
        """Whether the candidate is to be the champion."""
        return self.verdict in (Verdict.FIRST, Verdict.PROMOTED)


def evaluated_rows(store: ArtifactReader, side: Side) -> pl.DataFrame:
    """Return a row per test question that was evaluated: uid, of the first of its rows,
    data_source, subset."""
    drawn = store.table(side.evaluation, "completions")
    mine = drawn.filter((pl.col("checkpoint") == side.checkpoint) & (pl.col("mode") == GREEDY))
    mine = with_question(mine).filter(pl.col("uid") == pl.col("question"))
    return mine.select("uid", "data_source", "subset")


def same_rows(store: ArtifactReader, first: Side, second: Side) -> bool:
    """Return whether both were evaluated on the same test rows."""
    one, other = (prompts_digest(evaluated_rows(store, side)["uid"]) for side in (first, second))
    return one == other


def ask(
    store: ArtifactStore,
    name: str,
    section: RetrainSection,
    *,
    candidate: ArtifactRef,
    side: Side,
    champion: Champion | None,
    champion_side: Side | None,
    inputs_digest: str,
    recipe_digest: str = "",
    by: str = "",
    won: Callable[[Side, Side], pl.DataFrame] | None = None,
) -> GateDecision:
    """Return whether the export ``candidate`` may follow ``champion``; decided once for what is
    compared, and kept in the store.

    ``won``, what a judge says of the first side's answers against the second's (as ``won_prompts``
    does), is asked where the section compares and nothing was decided; where its judge is no
    evidence, the candidate is held as uncertain. Raises UserError where the two were evaluated on
    other rows, for a set that is not there or is too small at this look, and where nobody judged
    what ``section.metric`` needs.
    """
    evaluations = {"evaluation": side.evaluation}
    if champion_side is not None:
        evaluations["champion_evaluation"] = champion_side.evaluation
    asked = {
        "name": name,
        "champion": 0 if champion is None else champion.number,
        "candidate": candidate.key,
        "metric": section.metric,
        "prompts_digest": prompts_digest(evaluated_rows(store, side)["uid"]),
        "inputs_digest": inputs_digest,
    }
    checkpoints = [side.checkpoint, champion_side.checkpoint if champion_side else None]
    key = f"{name}/{_digest(asked, candidate, evaluations, section, checkpoints)}"
    judged, missing = None, ""
    if champion is not None and champion_side is not None and store.find(DECISIONS, key) is None:
        _check_rows(store, champion, champion_side, side)
        if section.compares:  # for minutes, so not under the lock
            assert won is not None, "a gate that compares is given what asks the judge"
            try:
                judged = won(side, champion_side)
            except NoEvidence as error:
                missing = str(error)
    with decision_lock(store, name):
        made = store.find(DECISIONS, key)
        if made is None:
            look = looks(store, name, asked["prompts_digest"]) + 1
            decision = Decision(Verdict.UNCERTAIN, (), look, alpha_of(look), missing)
            if not missing:
                decision = _decide(store, section, side, champion_side, look, judged)
            parents = {"candidate": candidate, **evaluations}
            told = {"sentence": decision.sentence()}
            lineage = Lineage(recipe_digest, "", parents, producer=by, metadata=told)
            table = pl.DataFrame(_rows(decision, asked), schema=polars_schema(DECISIONS))
            made = store.put(DECISIONS, key, tables={DECISIONS: table}, lineage=lineage)
    rows = store.table(made, DECISIONS).to_dicts()
    sentence = store.manifest(made).metadata["sentence"]
    return GateDecision(made, Verdict(rows[0]["verdict"]), sentence, rows)


def _digest(
    asked: Mapping[str, Any],
    candidate: ArtifactRef,
    evaluations: Mapping[str, ArtifactRef],
    section: RetrainSection,
    checkpoints: Sequence[str | None],
) -> str:
    """Return what names a decision: all that it depends on."""
    settings = section.model_dump(mode="json", include={"metric", "primary", "guards", "margin"})
    compared = {
        "champion": asked["champion"],
        "candidate": candidate.sha256,
        "evaluations": {role: ref.sha256 for role, ref in evaluations.items()},
        "settings": {**settings, "checkpoints": checkpoints},
        "prompts": asked["prompts_digest"],
    }
    text = json.dumps(compared, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


def _rows(decision: Decision, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per set of prompts; one for a decision that looked at none."""
    shared = {
        **asked,
        "verdict": decision.verdict.value,
        "look": decision.look,
        "alpha": decision.alpha,
        "made": datetime.now(UTC).isoformat(),
    }
    rows = [
        {
            **shared,
            "prompt_set": each.name,
            "bound": each.bound,
            "champion_mean": each.champion,
            "candidate_mean": each.candidate,
            "gain": each.gain.value,
            "low": each.gain.low,
            "high": each.gain.high,
            "prompts": each.prompts,
            "needed": each.needed,
        }
        for each in decision.sets
    ]
    return rows or [shared]


def _check_rows(store: ArtifactReader, champion: Champion, champion_side: Side, side: Side) -> None:
    if not same_rows(store, champion_side, side):
        raise UserError(
            f"the candidate and champion {champion.number} of '{champion.name}' were evaluated on"
            " other test rows, which says nothing of which is better; evaluate the champion on the"
            " candidate's rows"
        )


def _decide(
    store: ArtifactReader,
    section: RetrainSection,
    side: Side,
    champion_side: Side | None,
    look: int,
    won: pl.DataFrame | None,
) -> Decision:
    if champion_side is None:
        check_sets(evaluated_rows(store, side), section.primary, section.guards)
        return Decision(Verdict.FIRST, (), look, alpha_of(look))
    if won is not None:
        won = evaluated_rows(store, side).join(won, on="uid")
    if won is not None and section.metric == WIN_RATE:
        before, after = won.with_columns(value=EVEN), won
    else:
        before, after = (_values(store, each, section.metric) for each in (champion_side, side))
    return decide(
        before,
        after,
        primary=section.primary,
        guards=section.guards,
        margin=section.margin,
        look=look,
        won=won,
    )


def _values(store: ArtifactReader, side: Side, metric: str) -> pl.DataFrame:
    """Return uid, data_source, subset and value of each prompt that has the figure."""
    drawn = store.table(side.evaluation, "completions")
    results = store.table(side.evaluation, "eval_results")
    found = prompt_values(drawn, results, side.checkpoint)
    if metric not in found:
        raise UserError(
            f"retrain.metric = '{metric}': no test prompt of evaluation/{side.evaluation.key} has"
            f" it; it has {', '.join(found) or 'none'}; set retrain.metric to one of these"
        )
    return evaluated_rows(store, side).join(found[metric], on="uid", how="inner")
