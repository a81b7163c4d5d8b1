"""What became of each prompt, asked of the tables of real runs by SQL, beside the prompt stream
itself: none is lost and none is trained twice, whatever ended the run, and how often."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from rlcore.results.provenance import record_recipe
from rlcore.results.queries import answer
from rlcore.results.questions import statement
from rlcore.results.run import record_stage
from rlcore.rl.loop import iterate
from rlcore.rl.phases import Phases
from rlcore.rl.prompts import PromptStream
from rlcore.rl.records import KIND
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.results.records import stage_record
from tests.rlcore.rl.conftest import LINEAGE, Dataset
from tests.rlcore.rl.test_ahead import DAPO, Killed, dying_in, number_of, run, stale
from tests.rlcore.rl.test_records_history import digits, half_teach
from tests.tiers import fast

pytestmark = pytest.mark.timeout(300)
Make = Callable[..., Phases]
Row = dict[str, Any]
RUN = "a-00000001"
# 64 prompts: an epoch is two iterations, and 16 prompts of it are left over.
TAIL = {"rl.rollout.prompts": 24, "rl.rollout.samples": 2, "rl.rollout.max_new_tokens": 6}
ROUNDS = {**DAPO, **TAIL, "rl.rollout.prompts": 12, "rl.rollout.samples": 4}  # an epoch: 5 rounds
REASONS = (
    *("trained", "filtered", "unscored", "surplus", "repeated", "tail", "ahead", "not_drawn"),
    *("before_fork", "pruned"),
)


def asked(phases: Phases, dataset: Dataset, question: str) -> list[Row]:
    """The rows of an answer about the run."""
    store, key = phases.store, phases.records.key
    if store.find("dataset", "d") is None:
        prompts = {"prompts": dataset.store.table(dataset.ref, "prompts")}
        store.put("dataset", "d", tables=prompts, lineage=LINEAGE)
    digest = record_recipe(store, phases.recipe, LINEAGE).key
    for stage, kind, made in (("prepare_data", "dataset", "d"), ("rl", "policy", key)):
        record = stage_record(RUN, stage, kind=kind, key=made)
        record_stage(store, replace(record, recipe_digest=digest), LINEAGE)
    return answer(store, statement(store, question, RUN, pytest.fail)).dicts()


def ledger(phases: Phases, dataset: Dataset) -> list[Row]:
    """The ledger, which must add up and miss nothing."""
    rows = asked(phases, dataset, "ledger")
    for row in rows:
        assert row["lost"] == row["twice"] == 0, row
        assert sum(row[reason] for reason in REASONS) == row["prompts"] == 64, row
        assert min(row.values()) >= 0, row
    return rows


def trained_by_epoch(phases: Phases) -> dict[int, Counter[str]]:
    """How often each prompt of an epoch (from 1) was trained, by the stream and the records; what
    was drawn must be what the stream has at these places."""
    store, key, stream = phases.store, phases.records.key, phases.drawing.stream
    count, height = stream.round_size, stream.prompts.height
    found: dict[int, Counter[str]] = defaultdict(Counter)
    cursor = 0
    for number in range(1, last_of(phases) + 1):
        ref = store.find(KIND, f"{key}/{number:06d}")
        assert ref is not None
        taught = store.manifest(ref).parents["advantages"]
        rows = set(store.table(taught, "advantages")["trajectory_id"])
        (end,) = store.table(ref, KIND)["cursor"]
        for drawn in range(0, end - cursor, count):
            name = f"{key}/{number:06d}" + (f"-{drawn // count}" if drawn else "")
            rollouts = store.find("rollouts", name)
            assert rollouts is not None
            table = store.table(rollouts, "rollouts")
            due = stream.round(cursor=cursor, drawn=drawn)["uid"]
            assert table["uid"].unique(maintain_order=True).equals(due)
            epoch = 1 + (cursor + drawn) // (height - height % count)
            taught_here = table.filter(table["trajectory_id"].is_in(rows))
            found[epoch].update(taught_here["uid"].unique().to_list())
        cursor = end
    return found


def last_of(phases: Phases) -> int:
    """The newest recorded iteration."""
    return max(number_of(key) for key in phases.store.keys(KIND, f"{phases.records.key}/"))


def check_against_stream(phases: Phases, dataset: Dataset) -> list[Row]:
    """The ledger, whose trained prompts must be those that the stream says."""
    rows, trained = ledger(phases, dataset), trained_by_epoch(phases)
    for row in rows:
        times = trained[row["epoch"]]
        assert row["trained"] == len(times)
        assert set(times.values()) <= {1}
    return rows


@pytest.mark.parametrize("staleness", fast([0, 1, 2], 2))
def test_an_epoch_is_trained_but_for_its_tail(
    make_phases: Make, dataset: Dataset, staleness: int
) -> None:
    phases = make_phases("quickstart", digits, {**stale(staleness), **TAIL, "rl.iterations": 5})
    run(phases)
    rows = check_against_stream(phases, dataset)
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row["trained"] for row in rows] == [48, 48, 24]
    assert [row["not_drawn"] for row in rows] == [0, 0, 24]
    assert {row["tail"] for row in rows} == {16}


@pytest.mark.parametrize("staleness", fast([0, 2], 2))
def test_rounds_of_dynamic_sampling_leave_out_with_a_reason(
    make_phases: Make, dataset: Dataset, staleness: int
) -> None:
    """Also where an iteration begins in one epoch and ends in the next."""
    over = {**stale(staleness), **ROUNDS, "rl.iterations": 6}
    phases = make_phases("quickstart", half_teach, over)
    run(phases)
    rows = check_against_stream(phases, dataset)
    assert len(rows) > 2
    sums = {name: sum(row[name] for row in rows) for name in REASONS}
    assert sums["trained"] == 6 * 12
    assert sums["filtered"] > 0
    assert sums["surplus"] > 0
    assert sums["repeated"] > 0
    assert {row["tail"] for row in rows} == {4}


def test_a_group_without_scores_is_told_apart(make_phases: Make, dataset: Dataset) -> None:
    def some(row: Any) -> float | None:
        parts = row.trajectory_id.split("-")
        return None if len(parts) == 3 and int(parts[1], 16) % 8 == 0 else half_teach(row)

    over = {**ROUNDS, "rl.iterations": 2, "reward.max_error_fraction": 1.0}
    phases = make_phases("quickstart", some, over)
    run(phases)
    rows = check_against_stream(phases, dataset)
    assert sum(row["unscored"] for row in rows) > 0


def test_what_was_drawn_ahead_of_an_early_end_is_told(make_phases: Make, dataset: Dataset) -> None:
    ends = {"rl.validation.stop_at": 1e-9, "rl.validation.patience": 3, "rl.validation.every": 1}
    over = {**stale(2), **TAIL, **ends, "rl.iterations": 50}
    phases = make_phases("quickstart", lambda row: 1.0, over)
    state = run(phases)
    rows = check_against_stream(phases, dataset)
    drawn = {number_of(key) for key in phases.store.keys("rollouts", "run/")}
    beyond = [number for number in drawn if number > state.iteration]
    assert sum(row["ahead"] for row in rows) == 24 * len(beyond)


def test_a_shorter_run_counts_what_it_has_itself(make_phases: Make, dataset: Dataset) -> None:
    """A longer one continued with its records."""
    over = {**stale(1), **TAIL}
    run(make_phases("quickstart", digits, {**over, "rl.iterations": 5}))
    rows = ledger(make_phases("quickstart", digits, {**over, "rl.iterations": 3}), dataset)
    assert [row["trained"] for row in rows] == [48, 24]


def test_a_fork_says_what_was_drawn_before_it(make_phases: Make, dataset: Dataset) -> None:
    phases = make_phases("quickstart", digits, {**TAIL, "rl.iterations": 3})
    run(phases)
    over = {**TAIL, "rl.iterations": 4, "rl.fork": "run@3"}
    forked = make_phases("quickstart", digits, over, key="forked")
    run(forked)
    (row,) = ledger(forked, dataset)
    assert (row["epoch"], row["before_fork"], row["trained"]) == (2, 24, 24)


def test_pruned_rollouts_and_lost_ones_are_two_things(make_phases: Make, dataset: Dataset) -> None:
    phases = make_phases("quickstart", half_teach, {**ROUNDS, "rl.iterations": 3})
    run(phases)
    rounds = [key for key in phases.store.keys("rollouts", "run/") if number_of(key) == 2]
    assert len(rounds) > 1
    phases.store.discard("rollouts", rounds[-1])
    lost = asked(phases, dataset, "ledger")
    assert sum(row["lost"] for row in lost) == 12
    for key in rounds[:-1]:
        phases.store.discard("rollouts", key)
    rows = asked(phases, dataset, "ledger")
    assert sum(row["pruned"] for row in rows) == 12 * len(rounds)
    assert {row["lost"] for row in rows} == {0}


def test_prompts_that_are_drawn_again_are_twice_and_others_lost(
    make_phases: Make, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a resume began at the wrong place of the stream."""
    original = PromptStream.round

    def always_the_first(stream: PromptStream, *, cursor: int, drawn: int) -> Any:
        return original(stream, cursor=0, drawn=drawn)

    monkeypatch.setattr(PromptStream, "round", always_the_first)
    phases = make_phases("quickstart", digits, {**TAIL, "rl.iterations": 2})
    run(phases)
    (row,) = asked(phases, dataset, "ledger")
    assert (row["trained"], row["twice"], row["lost"]) == (24, 24, 24)


@pytest.mark.parametrize(
    ("staleness", "killed_in"),
    [
        (2, ["update"]),
        pytest.param(0, ["rollout", "update", "sync"], marks=pytest.mark.slow),
        pytest.param(2, ["rollout", "update", "sync"], marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_has_lost_nothing_before_and_after(
    make_phases: Make, dataset: Dataset, staleness: int, killed_in: list[str]
) -> None:
    over = {**stale(staleness), **ROUNDS, "rl.iterations": 2}
    wholes = set()
    for phase in killed_in:
        phases = make_phases("quickstart", half_teach, over, key=phase)
        with pytest.raises(Killed):
            iterate(phases, dying_in(phase, iteration=2), lambda state, metrics: None)
        check_against_stream(phases, dataset)
        again = make_phases("quickstart", half_teach, over, key=phase)
        run(again)
        rows = check_against_stream(again, dataset)
        wholes.add(tuple(tuple(row.values()) for row in rows))
    assert len(wholes) == 1, "the ledger of a run does not depend on where it was killed"


@contextmanager
def killed_after(monkeypatch: pytest.MonkeyPatch, writes: int, *, before: bool) -> Iterator[None]:
    """Let the run die at its ``writes``-th artifact, before it is written or after, in whichever
    thread writes it; nothing is written from then on."""
    left, original = [writes], ArtifactStore.put

    def put(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0 or (left[0] == 0 and before):
            raise Killed
        ref = original(*arguments, **options)
        if left[0] == 0:
            raise Killed
        return ref

    with monkeypatch.context() as patched:
        patched.setattr(ArtifactStore, "put", put)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 2])
def test_over_50_kills_no_prompt_is_lost_and_none_trained_twice(
    make_phases: Make, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, staleness: int
) -> None:
    over = {**stale(staleness), **ROUNDS, "rl.iterations": 60}
    dice = random.Random(staleness)
    phases = make_phases("quickstart", half_teach, over)
    for kill in range(50):
        with (
            killed_after(monkeypatch, dice.randint(1, 12), before=dice.random() < 0.5),
            pytest.raises(Killed),
        ):
            run(phases)
        if phases.store.keys("rollouts", "run/") and kill % 5 == 0:
            check_against_stream(phases, dataset)
        phases = make_phases("quickstart", half_teach, over)
    rows = check_against_stream(phases, dataset)
    assert last_of(phases) > 10
    assert len(rows) > 5


def test_rows_age_by_the_optimizer_steps_between(make_phases: Make, dataset: Dataset) -> None:
    over = {**stale(2), **TAIL, "rl.update.mini_batches": 3, "rl.iterations": 5}
    phases = make_phases("quickstart", digits, over)
    run(phases)
    rows = asked(phases, dataset, "skipped")
    assert [row["updates_max"] for row in rows] == [0, 3, 6, 6, 6]
    assert [row["updates_min"] for row in rows] == [0, 3, 6, 6, 6]
    assert [row["stale"] for row in rows] == [0, 48, 48, 48, 48]
    fresh = make_phases("quickstart", digits, {**TAIL, "rl.iterations": 2}, key="fresh")
    run(fresh)
    assert {row["updates_max"] for row in asked(fresh, dataset, "skipped")} == {0}


def test_a_filter_that_eats_long_responses_is_seen(make_phases: Make, dataset: Dataset) -> None:
    stops: list[int] = []

    def ended(row: Any) -> float:
        """A group whose responses are all cut off agrees."""
        return float(row.token_ids[-1] in stops)

    over = {**DAPO, "rl.rollout.max_new_tokens": 16, "rl.iterations": 2}
    phases = make_phases("quickstart", ended, over)
    stops += phases.drawing.stop_ids
    run(phases)
    rows = asked(phases, dataset, "lengths")
    assert len(rows) == 2
    for row in rows:
        assert row["changed"] == 0
        assert row["trained"] == 4 * 4 < row["drawn"]
        assert row["cut_off"] < row["trained"]
        assert row["trained_mean"] < row["mean"]
        assert row["trained_p50"] <= row["p50"] <= row["p90"] <= row["max"] == 16
