"""Contracts of the tables that say what was run: a run's stages, RL's iterations, what was read,
which models are champions and why."""

import pandera.polars as pa
import polars as pl

from schemas.contract import Table


class RunStages(Table):
    """One stage of one flow run, from its beginning; without a digest it has not ended.

    Written by the flow, one row an artifact ``runs/<flow run id>/<stage>``: whoever asks what a run
    used or made finds it here, whichever run wrote the artifacts.
    """

    flow_run_id: pl.String
    run: pl.String
    recipe: pl.String
    recipe_digest: pl.String
    seed: pl.Int64
    overrides: pl.String
    stage: pl.String
    result_kind: pl.String
    result_key: pl.String
    records_key: pl.String
    sha256: pl.String = pa.Field(nullable=True)
    cached: pl.Boolean = pa.Field(nullable=True)
    began: pl.String
    seconds: pl.Float64 = pa.Field(nullable=True)


class Restarts(Table):
    """One time that a stage was begun again within its flow run, because workers were lost.

    One row an artifact ``restarts/<flow run id>/<stage>/<number>``.
    """

    flow_run_id: pl.String
    stage: pl.String
    number: pl.Int64 = pa.Field(ge=1)
    step: pl.Int64 = pa.Field(nullable=True, ge=0)
    cause: pl.String
    remedy: pl.String
    began: pl.String
    seconds: pl.Float64 = pa.Field(nullable=True, ge=0)


class Iterations(Table):
    """One RL iteration: which weights it turned into which, and how far it read the prompts.

    One row an artifact ``iterations/<key>/<iteration>``, whose parents are what it learnt from and
    the record before it; iteration 0 is the state that RL began with.
    """

    iteration: pl.Int64 = pa.Field(ge=0)
    version: pl.Int64 = pa.Field(ge=0)
    digest_before: pl.String
    digest_after: pl.String
    cursor: pl.Int64 = pa.Field(ge=0)


class Weights(Table):
    """One tensor of the weights that an iteration ended with; beside the row of ``Iterations``."""

    tensor: pl.String = pa.Field(unique=True)
    digest: pl.String


class Inputs(Table):
    """One file or hub dataset that a stage read from outside the store."""

    source: pl.String
    url: pl.String
    digest: pl.String


class Champions(Table):
    """One entry in the history of a recipe's champions; the highest number is the champion.

    One row an artifact ``champions/<name>/<number>``, whose parents are the export, the decision
    with both evaluations, and the entry before it. Entries are only ever added.
    """

    name: pl.String
    number: pl.Int64 = pa.Field(ge=1)
    cause: pl.String = pa.Field(isin=["first", "promoted", "by hand", "rolled back"])
    export_key: pl.String
    export_sha256: pl.String
    decision_key: pl.String = pa.Field(nullable=True)
    restored: pl.Int64 = pa.Field(nullable=True, ge=1)
    by: pl.String
    made: pl.String


class Decisions(Table):
    """What the gate came to on one set of test prompts, at one look at them.

    The rows of one artifact ``decisions/<name>/<key>`` are one decision.
    """

    name: pl.String
    verdict: pl.String = pa.Field(isin=["first", "promoted", "worse", "uncertain"])
    prompts_digest: pl.String
    look: pl.Int64 = pa.Field(ge=1)
    alpha: pl.Float64 = pa.Field(gt=0, lt=1)
    champion: pl.Int64 = pa.Field(ge=0)
    candidate: pl.String
    inputs_digest: pl.String
    prompt_set: pl.String = pa.Field(nullable=True)
    metric: pl.String
    bound: pl.Float64 = pa.Field(nullable=True)
    champion_mean: pl.Float64 = pa.Field(nullable=True)
    candidate_mean: pl.Float64 = pa.Field(nullable=True)
    gain: pl.Float64 = pa.Field(nullable=True)
    low: pl.Float64 = pa.Field(nullable=True)
    high: pl.Float64 = pa.Field(nullable=True)
    prompts: pl.Int64 = pa.Field(nullable=True, ge=1)
    needed: pl.Int64 = pa.Field(nullable=True, ge=1)
    made: pl.String
