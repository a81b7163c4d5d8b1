"""What is printed says the arithmetic in words."""

import pytest

from rlcore.models.shape import from_scratch_shape
from rlcore.plan.batches import all_batches
from rlcore.plan.data_size import DataSize
from rlcore.plan.dry_run import (
    batch_lines,
    disk_lines,
    engine_line,
    render_plan,
    sampler_line,
)
from rlcore.plan.machine import check_machine
from rlcore.plan.memory import gib
from rlcore.plan.preconditions import StartCheck
from rlcore.plan.states import InStore, StageState, State
from schemas.model import FromScratch
from tests.rlcore.plan.small import ROOMY, recipe


def test_the_printout_says_the_arithmetic_in_words() -> None:
    text = render_plan(StartCheck(check_machine(recipe(), ROOMY)))
    for sentence in (
        "64 prompts x 8 samples -> 512 sequences -> 2 mini-batch(es) of 256 x 1 epoch(s) -> 2"
        " optimizer step(s); at most 80 + 40 = 120 tokens a sequence -> 61,440 tokens, 20,480 of"
        " them sampled",
        "100 iterations -> 6,400 prompts = 1.6 passes over the training prompts, 51,200 sequences,"
        " 200 optimizer steps, at most 6,144,000 tokens",
        "46,080 demonstrations in batches of 64 -> 720 optimizer steps per epoch x 1 epoch(s)",
        "3 checkpoints x 768 prompts x 9 completions",
        "at most 361,600 parameters",
        "hardware.device = 'auto' means cpu here",
    ):
        assert sentence in text, f"missing from the plan: {sentence}\n{text}"


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0.0 MiB"), (12 * 2**20, "12.0 MiB"), (2**30 - 1, "1024.0 MiB"), (3 * 2**29, "1.5 GiB")],
)
def test_a_size_is_told_in_mib_or_gib(size: int, words: str) -> None:
    assert gib(size) == words


def test_what_is_not_known_is_said_and_no_zero_is_printed_for_it() -> None:
    data = DataSize(None, None, None, None)
    lines = batch_lines(recipe(), data, all_batches(recipe(), None))
    assert lines[0].startswith("data: an unknown number of training prompts, an unknown number of")
    assert not any("passes over" in line or "evaluate" in line for line in lines)


def test_it_says_what_overlaps_and_why_the_rest_does_not() -> None:
    text = render_plan(StartCheck(check_machine(recipe(), ROOMY)))
    assert "\nOverlap\n  rewards overlap sampling: " in text
    assert "sampling and training take turns, as rl.rollout.max_staleness = 0: " in text
    assert "published policies in the host's memory, max_staleness + 1 = 1: 1.4 MiB" in text
    over = {"rl__algorithm__importance_correction__level": "token", "rl__checkpoint__every": 1}
    stale = recipe(rl__rollout__max_staleness=2, **over)
    text = render_plan(StartCheck(check_machine(stale, ROOMY)))
    for sentence in (
        "sampling overlaps training, as rl.rollout.max_staleness = 2: the rows of iteration i are"
        " of the policy after iteration i - 3, and an iteration takes the longer of training and",
        "validation overlaps nothing, every 5 iteration(s)",
        "the last 3 are kept, as rows that are under way come from the last 3 policies",
        "published policies in the host's memory, max_staleness + 1 = 3: 4.1 MiB",
    ):
        assert sentence in text, f"missing from the plan: {sentence}\n{text}"


def test_what_is_in_the_store_is_in_no_total() -> None:
    disk: dict[str, int] = dict.fromkeys(("sft", "rl", "export"), 2**30)
    goes_on = StageState("rl", State.CONTINUES, step=3)
    found = InStore((StageState("sft", State.CACHED), goes_on))
    rl, export, total, store = disk_lines(disk, "/store", 9 * 2**30, found)
    assert [rl.split(), export.split()] == [["rl", "1.0", "GiB"], ["export", "1.0", "GiB"]]
    assert total.split() == ["in", "all", "2.0", "GiB"]
    assert store == "store: /store, 9.0 GiB free"
    store, line = disk_lines({}, "s3://b", None, InStore(unread="s3://b: no answer"))
    assert store == "store: s3://b, free space of a remote store unknown"
    assert line.endswith("every stage is counted: s3://b: no answer")


def test_auto_says_which_engine_samples_and_why() -> None:
    auto, named = recipe(), recipe(hardware__rollout__engine="vllm")
    shape = from_scratch_shape(FromScratch())
    line = sampler_line(auto, "cpu", shape)
    assert line.startswith("rollout engine: transformers (auto: 361,600 parameters are fewer than")
    assert line.endswith("RL that has begun continues with the engine that it recorded")
    assert sampler_line(auto, "cuda", None).startswith("rollout engine: vllm (auto: the device is")
    assert sampler_line(auto, "cpu", None).endswith("of parameters, which is not known yet")
    assert sampler_line(named, "cpu", shape) == "rollout engine: vllm"


def test_the_cache_of_an_engine_is_told_by_the_answers_that_fit_it() -> None:
    line = engine_line(recipe(), 2**30, kv_tokens=1200, device="cpu")
    assert "KV cache of 1,200 tokens -> 10 longest sequences at once" in line
    line = engine_line(recipe(), 2**30, kv_tokens=10**9, device="cpu")
    assert "-> 256 longest sequences at once (max_num_seqs = 256)" in line
    line = engine_line(recipe(), 2**30, kv_tokens=None, device="cuda")
    assert line.endswith(
        "of 2: 25% of its GPU(s), weights included; KV cache unknown without a GPU"
    )
