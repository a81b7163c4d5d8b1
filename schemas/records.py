"""Contracts of the tables that say what was run: a run's stages, RL's iterations, what was read,
which models are champions and why."""

from schemas.contract import boolean, float64, int64, string, table

# Written by the flow from the stage's beginning, one row an artifact
# ``runs/<flow run id>/<stage>``: whoever asks what a run used or made finds it here, whichever run
# wrote the artifacts. Without a digest the stage has not ended.
RUN_STAGES = table(
    flow_run_id=string("the run: id of its Prefect flow run"),
    run=string("the run's folder below runs/"),
    recipe=string("name of the recipe"),
    recipe_digest=string("sha256 of the resolved recipe: artifacts.recipe_digest"),
    seed=int64("seed of the recipe"),
    overrides=string("JSON object: dotted keys that the run was given, and their values"),
    stage=string("the stage"),
    result_kind=string("kind of the artifact that the stage makes: artifacts.kind"),
    result_key=string("its key: artifacts.key"),
    records_key=string("key of its checkpoints, metrics, rollouts and other records"),
    sha256=string(
        "digest of the result; null while the stage runs, and where it failed", nullable=True
    ),
    cached=boolean("whether the result came from the store; null without a result", nullable=True),
    began=string("when the run came to the stage, ISO 8601, UTC"),
    seconds=float64("duration of the stage in this run, s; null without a result", nullable=True),
)

# One row an artifact ``restarts/<flow run id>/<stage>/<number>``.
RESTARTS = table(
    flow_run_id=string("the run: id of its Prefect flow run"),
    stage=string("the stage"),
    number=int64("of the restart among those of the stage in this run, from 1", ge=1),
    step=int64(
        "step, in RL iteration, of the checkpoint that it continued with; null without one",
        nullable=True,
        ge=0,
    ),
    cause=string("what died, hung, did not answer, or has other ranks than the checkpoint"),
    remedy=string("what was different afterwards"),
    began=string("when the cause was noticed, ISO 8601, UTC"),
    seconds=float64(
        "what it cost, s: from the last step before it until the stage was further than that, less"
        " the time of one step; null while it is not, and for other ranks",
        nullable=True,
        ge=0,
    ),
)

# One row an artifact ``iterations/<key>/<iteration>``, whose parents are what it learnt from and
# the record before it; iteration 0 is the state that RL began with.
ITERATIONS = table(
    iteration=int64("RL iteration, from 1; 0 is what RL began with", ge=0),
    version=int64("version of the weights after it", ge=0),
    digest_before=string("sha256 of the weights that it updated"),
    digest_after=string("sha256 of the weights that it ended with"),
    cursor=int64("prompts that were drawn from the stream up to its end", ge=0),
)

# Beside the row of ``ITERATIONS``.
WEIGHTS = table(
    tensor=string("its name in the Hugging Face model", unique=True),
    digest=string("sha256 over its name, dtype, shape and bytes"),
)

INPUTS = table(
    source=string("who reads it, e.g. data.sources[0] train.jsonl, or model"),
    url=string("its path, URL or hub name"),
    digest=string("sha256 of the file, or commit of the hub dataset"),
)

# One row an artifact ``champions/<name>/<number>``, whose parents are the export, the decision with
# both evaluations, and the entry before it. Entries are only ever added.
CHAMPIONS = table(
    name=string("the recipe whose champion it is"),
    number=int64("from 1; the highest is the champion", ge=1),
    cause=string(
        "first (there was none before), promoted (by the gate), by hand, or rolled back",
        isin=["first", "promoted", "by hand", "rolled back"],
    ),
    export_key=string("key of its artifact of kind export"),
    export_sha256=string("content digest of that artifact"),
    decision_key=string(
        "key of its artifact of kind decisions; null without a gate", nullable=True
    ),
    restored=int64(
        "number of the entry that was rolled back to; null otherwise", nullable=True, ge=1
    ),
    by=string("id of the flow run that made the entry; empty where a command did"),
    made=string("when the entry was made, ISO 8601, UTC"),
)

# The rows of one artifact ``decisions/<name>/<key>`` are one decision, at one look at the prompts.
DECISIONS = table(
    name=string("the recipe whose champion was to be replaced"),
    verdict=string(
        "first, promoted, worse or uncertain; the last two hold the candidate",
        isin=["first", "promoted", "worse", "uncertain"],
    ),
    prompts_digest=string("sha256 over the uids of all test prompts: of their content"),
    look=int64("how often, with this time, these prompts have decided for this name", ge=1),
    alpha=float64(
        "share that the intervals leave out: 0.05, halved by each look after the first", gt=0, lt=1
    ),
    champion=int64("number of the champion that it was compared with; 0 = there was none", ge=0),
    candidate=string("key of the candidate's artifact of kind export"),
    inputs_digest=string("sha256 over what was read from outside the store to make it"),
    prompt_set=string("set of test prompts; null where there was no champion", nullable=True),
    metric=string("what was compared: retrain.metric of the recipe"),
    bound=float64("what the whole interval must exceed: 0, or -margin on a guard", nullable=True),
    champion_mean=float64("mean of the metric over the set's prompts", nullable=True),
    candidate_mean=float64("alike", nullable=True),
    gain=float64("candidate_mean - champion_mean", nullable=True),
    low=float64("lower end of the gain's interval", nullable=True),
    high=float64("upper end of it", nullable=True),
    prompts=int64("prompts of the set that both have a figure of", nullable=True, ge=1),
    needed=int64(
        "prompts that would decide, were gain and spread as observed; null where it is decided, or"
        " no number would",
        nullable=True,
        ge=1,
    ),
    made=string("when it was decided, ISO 8601, UTC"),
)
