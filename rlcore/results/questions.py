"""Questions that people ask of a run, as SQL over the store's views, to build on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rlcore.results.conditions import constant
from rlcore.results.folders import LATEST
from rlcore.results.queries import answer
from rlcore.store.reader import ArtifactReader
from schemas.errors import UserError, did_you_mean


@dataclass(frozen=True, slots=True)
class NamedQuestion:
    """``sql``: with ``{run}`` and the condition on what RL recorded of it: ``{rows}`` of
    trajectories, ``{steps}`` of metrics, ``{reports}`` of diagnostics. All as SQL.

    ``needs``: table -> the stage that writes it.
    """

    title: str
    explanation: str
    sql: str
    needs: Mapping[str, str]


_TRAJECTORIES = {"rollouts": "rl", "rewards": "rl"}
_PROMPTS = "(select distinct on (uid) uid, prompt[-1].content as prompt, ground_truth from prompts)"
QUESTIONS: dict[str, NamedQuestion] = {
    "never-rewarded": NamedQuestion(
        "prompts that were never rewarded",
        "No sample was right; where nothing checks correctness, none scored above the run's least."
        " A prompt that is too hard, has a wrong ground truth, or whose answers the reward cannot"
        " read teaches nothing.",
        f"""
select t.uid, p.prompt, p.ground_truth, count(*) as samples,
    count(distinct t.iteration) as iterations, mode(t.response) as usual_response
from trajectories t left join {_PROMPTS} p using (uid)
where {{rows}} and t.score is not null
group by all
having not coalesce(bool_or(t.correct), max(t.score) > (
    select min(score) from trajectories where {{rows}}))
order by samples desc, t.uid""",
        {**_TRAJECTORIES, "prompts": "prepare_data"},
    ),
    "reward-by-prompt": NamedQuestion(
        "reward of each prompt",
        "Worst first. early and late: mean score in the first and in the second half of the run's"
        " iterations; null where the prompt was not drawn then.",
        f"""
with t as (
    select *, iteration > max(iteration) over () / 2 as late
    from trajectories where {{rows}})
select t.uid, p.prompt, count(*) as samples, avg(t.score) as score,
    avg(t.score) filter (not t.late) as early, avg(t.score) filter (t.late) as late,
    avg(t.correct::int) as correct
from t left join {_PROMPTS} p using (uid)
group by t.uid, p.prompt order by score, t.uid""",
        {**_TRAJECTORIES, "prompts": "prepare_data"},
    ),
    "length-against-reward": NamedQuestion(
        "reward by length of the response",
        "Ten equal parts of the trajectories, the shortest first. A score that rises with length"
        " while correct does not is a reward for length; a fall in the last part with cut_off near"
        " 1 is a max_new_tokens that is too small.",
        """
with t as (
    select list_sum(loss_mask::int[]) as tokens, score, correct, finish_reason
    from trajectories where {rows}),
parts as (select *, ntile(10) over (order by tokens) as part from t)
select part, min(tokens) as tokens_from, max(tokens) as tokens_to, count(*) as responses,
    avg(score) as score, avg(correct::int) as correct,
    avg((finish_reason = 'length')::int) as cut_off
from parts group by part order by part""",
        _TRAJECTORIES,
    ),
    "hacking": NamedQuestion(
        "responses that score high and are wrong",
        "Verdict false, and a score of at least the median of right responses. Read them: what"
        " they share is what the reward pays for. None is the best answer; without verdicts there"
        " is none either (a function of weight 0 gives verdicts that cost nothing).",
        """
with t as (
    select *, median(score) filter (correct) over () as usual
    from trajectories where {rows})
select iteration, uid, score, usual as median_of_right, parts, detail, response
from t where not correct and score >= usual
order by iteration desc, score desc, uid""",
        _TRAJECTORIES,
    ),
    "slowest": NamedQuestion(
        "the slowest iterations, and where their time went",
        "Seconds by phase. testing: validation; save: the checkpoint; outside: what no phase"
        " accounts for.",
        """
with t as (
    select step as iteration, name, value from metrics
    where {steps} and stage = 'rl' and step > 0)
select iteration, max(value) filter (name = 'timing_s/step') as seconds,
    max(value) filter (name = 'timing_s/gen') as rollout,
    max(value) filter (name = 'timing_s/reward') as reward,
    max(value) filter (name = 'timing_s/adv') as advantage,
    max(value) filter (name = 'timing_s/update_actor') as update_actor,
    max(value) filter (name = 'timing_s/update_critic') as update_critic,
    max(value) filter (name = 'timing_s/sync') as sync,
    max(value) filter (name = 'timing_s/testing') as testing,
    max(value) filter (name = 'timing_s/save_checkpoint') as save,
    max(value) filter (name = 'timing_s/outside') as outside
from t group by iteration having seconds is not null order by seconds desc limit 20""",
        {"metrics": "rl"},
    ),
    "skipped": NamedQuestion(
        "rows that were stale, or taught nothing",
        "By iteration. unscored: no score (timeout, error, aborted); untrained: no advantage,"
        " since their group was left out or their score is missing; stale: sampled by older weights"
        " than those that they train. updates: how much older, in optimizer steps; null of rows"
        " that no iteration has come to yet.",
        """
with records as (
    select iteration, version, version - lag(version) over (order by iteration) as moved
    from iterations where {rows}),
taken as (
    select step as iteration, value from metrics
    where {steps} and stage = 'rl' and name = 'actor/optimizer_steps'),
behind as (
    select iteration + 1 as iteration, version, sum(
        coalesce(moved, 0) * coalesce(value, (select max(value) from taken), 0)
        ) over (order by iteration) as updates
    from records left join taken using (iteration)),
sampled_by as (select version, max(updates) as updates from behind group by version),
sampled as (
    select iteration, score, outcome, advantages is null as untrained,
        list_min(turn_versions) as version
    from trajectories where {rows}),
aged as (
    select s.iteration, score, outcome, untrained, trains.updates - made.updates as updates
    from sampled s left join behind trains using (iteration)
    left join sampled_by made on made.version = s.version)
select iteration, count(*) as sampled, count(*) filter (score is null) as unscored,
    count(*) filter (outcome = 'timeout') as timeouts,
    count(*) filter (outcome = 'error') as errors,
    count(*) filter (outcome = 'aborted') as aborted,
    count(*) filter (untrained) as untrained,
    count(*) filter (updates > 0) as stale,
    min(updates) as updates_min, avg(updates) as updates_mean, max(updates) as updates_max
from aged group by iteration order by iteration""",
        {**_TRAJECTORIES, "advantages": "rl"},
    ),
    "ledger": NamedQuestion(
        "what became of each prompt of an epoch",
        "By epoch, from 1: its prompts are as many as trained, filtered (their samples agreed),"
        " unscored (fewer than two of them have a score), surplus (the batch was full), repeated"
        " (drawn in the same iteration at the end of the epoch before), tail (no whole iteration is"
        " made of them), ahead (drawn, and not trained yet or before the run ended), not_drawn,"
        " before_fork (drawn by the run that this one continues) and pruned, together. lost and"
        " twice (trained more than once) are 0 in a sound run.",
        """
with p as (
    select uid from prompts where split = 'train' and records_key = (
        select any_value(records_key) from run_stages
        where run = {run} and stage = 'prepare_data')),
done as (
    select iteration, cursor, lag(cursor) over (order by iteration) as began
    from iterations where {rows}),
t as (
    select iteration, try_cast(split_part(split_part(key, '/', 2), '-', 2) as bigint) as round,
        uid, trajectory_id, score
    from trajectories where {rows}),
a as (
    select trajectory_id from (
        select records_key, trajectory_id, try_cast(split_part(key, '/', 2) as bigint) as iteration
        from advantages)
    where {rows}),
drawn as (
    select t.iteration, coalesce(round, 0) as round, uid, count(score) < 2 as unscored,
        count(a.trajectory_id) > 0 as trained
    from t left join a using (trajectory_id) group by t.iteration, round, uid),
sizes as (
    select prompts, prompts - prompts % places as length, places, first_place, last, last_place
    from (select count(*) as prompts from p),
        (select max(groups) as places from (
            select count(*) as groups from drawn group by iteration, round)),
        (select min(cursor) as first_place, max(iteration) as last, max(cursor) as last_place
            from done)),
rounds as (
    select iteration, round, began + round * places as place from (
        select iteration, began, places, unnest(range((cursor - began) // places)) as round
        from done, sizes where began is not null)
    union all
    select iteration, round,
        last_place + places * (row_number() over (order by iteration, round) - 1)
    from (select distinct iteration, round from drawn), sizes where iteration > last),
placed as (
    select iteration, round, place // length as epoch, iteration <= last as done,
        place // length > min(place // length) over (partition by iteration) as crossed,
        round = max(round) over (partition by iteration) as ends
    from rounds, sizes),
found as (select iteration, round, count(*) as groups from drawn group by iteration, round),
filled as (
    select iteration, epoch, crossed, ends and done as ends, coalesce(groups, 0) as groups,
        sum(coalesce(groups, 0)) over (partition by iteration) = 0 as gone
    from placed left join found using (iteration, round)),
by_round as (
    select epoch, count(*) * any_value(places) as passed,
        coalesce(sum(places - groups) filter (crossed and groups > 0), 0) as repeated,
        coalesce(sum(places) filter (gone), 0) as pruned,
        coalesce(sum(value) filter (ends), 0) as surplus
    from filled left join (
        select step as iteration, value from metrics
        where {steps} and stage = 'rl' and name = 'train/discarded_groups') using (iteration), sizes
    group by epoch),
by_group as (
    select epoch, count(distinct uid) as drawn,
        count(distinct uid) filter (done and trained) as trained,
        count(*) filter (done and trained) as trainings,
        count(*) filter (done and not trained and unscored) as unscored,
        count(*) filter (done and not trained and not unscored) as left_out,
        count(*) filter (not done) as ahead
    from placed join drawn using (iteration, round) group by epoch),
told as (
    select epoch, prompts, trained, left_out - surplus as filtered, unscored, surplus, repeated,
        prompts - length as tail, ahead, drawn, trainings - trained as twice, pruned, passed,
        length, greatest(0, first_place - epoch * length) as before_fork
    from by_round left join by_group using (epoch), sizes)
select epoch + 1 as epoch, prompts, trained, filtered, unscored, surplus, repeated, tail, ahead,
    length - before_fork - passed as not_drawn, before_fork, pruned,
    passed - drawn - repeated - pruned as lost, twice
from told order by epoch""",
        {"rollouts": "rl", "iterations": "rl", "prompts": "prepare_data"},
    ),
    "lengths": NamedQuestion(
        "lengths of responses that were drawn and that trained",
        "By iteration, in tokens of the policy: a filter that eats long responses makes the trained"
        " ones shorter than the drawn. kept_ratio: mean length of the responses that masks of"
        " rl.algorithm.importance_correction leave a token, over that of all; cut_off: trained ones"
        " without an end, which rl.algorithm.mask_truncated masks. changed: trained at another"
        " length than drawn; 0 in a sound run.",
        """
with t as (
    select iteration, list_sum(loss_mask::int[]) as tokens, advantages is not null as trained,
        finish_reason, len(advantages) <> len(token_ids) as changed
    from trajectories where {rows}),
m as (
    select step as iteration, value from metrics
    where {steps} and stage = 'rl' and name = 'rollout_corr/kept_length_ratio')
select t.iteration, count(*) as drawn, count(*) filter (trained) as trained,
    avg(tokens) as mean, avg(tokens) filter (trained) as trained_mean,
    quantile_disc(tokens, 0.5) as p50, quantile_disc(tokens, 0.5) filter (trained) as trained_p50,
    quantile_disc(tokens, 0.9) as p90, quantile_disc(tokens, 0.9) filter (trained) as trained_p90,
    max(tokens) as max, max(tokens) filter (trained) as trained_max,
    count(*) filter (trained and finish_reason = 'length') as cut_off,
    any_value(m.value) as kept_ratio, count(*) filter (changed) as changed
from t left join m using (iteration) group by t.iteration order by t.iteration""",
        {**_TRAJECTORIES, "advantages": "rl"},
    ),
    "findings": NamedQuestion(
        "what the checks found",
        "Periods in which a check failed, with what to change; none means that nothing was found.",
        """
select began, ended, severity, "check", value, message, remedy
from diagnostics where {reports} order by began, "check\"""",
        {"diagnostics": "rl"},
    ),
}


def question(name: str) -> NamedQuestion:
    """Return the question ``name``; raises UserError with the nearest for an unknown one."""
    if name not in QUESTIONS:
        raise UserError(
            f"'{name}' is not a question{did_you_mean(name, QUESTIONS)}; there are"
            f" {', '.join(QUESTIONS)}"
        )
    return QUESTIONS[name]


def statement(store: ArtifactReader, name: str, run: str, on_damage: Callable[[str], None]) -> str:
    """Return the SELECT that answers the question ``name`` about ``run`` (the name of its folder,
    or "latest").

    Raises UserError for a run that the store does not know, and a table that the run lacks.
    """
    asked = question(name)
    stages: dict[str, dict[str, str]] = {}  # records key, by run and stage
    last: dict[str, int | None] = {}  # iterations that a run was to have, where that is recorded
    for each, stage, records, planned in answer(store, _STAGES, on_damage).rows:
        stages.setdefault(each, {})[stage] = records
        last[each] = planned
    if run == LATEST and stages:
        run = next(iter(stages))
    if run not in stages:
        there = ", ".join(list(stages)[:5]) or "none; a run of this version records itself there"
        raise UserError(
            f"{store.root} knows no run '{run}'{did_you_mean(run, stages)}; there are {there}"
        )
    _refuse_missing(store, asked, run, stages[run], on_damage)
    mine = f"records_key = {constant(stages[run].get('rl', ''))}"
    places = dict.fromkeys(_NUMBERED_BY, mine)
    if last[run] is not None:  # a longer run may have continued with its records
        places = {name: f"{mine} and {by} <= {last[run]}" for name, by in _NUMBERED_BY.items()}
    return asked.sql.format(run=constant(run), **places).strip()


_NUMBERED_BY = {"rows": "iteration", "steps": "step", "reports": "began"}
_STAGES = """
select run, stage, records_key, planned
from run_stages join (select flow_run_id, planned from runs) using (flow_run_id)
order by max(began) over (partition by run) desc, run, began"""


def _refuse_missing(
    store: ArtifactReader,
    asked: NamedQuestion,
    run: str,
    stages: Mapping[str, str],
    on_damage: Callable[[str], None],
) -> None:
    """Raise UserError where the run lacks a table that the question needs."""
    tables = "select split_part(key, '/', 1), unnest(json_keys(rows)) from artifacts"
    written = set(answer(store, tables, on_damage).rows)
    for table, stage in asked.needs.items():
        if (stages.get(stage), table) not in written:
            again = " into a store without this result" if stage in stages else ""
            raise UserError(
                f"the run '{run}' lacks the table {table}, which the stage {stage} writes and has"
                " not written, or no longer has; wait until it does, or run its recipe again"
                f"{again}"
            )
