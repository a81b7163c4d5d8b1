"""What every engine must do, vLLM and transformers alike, against a plain forward pass."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlcore.engines.types import Sampling, TurnRequest
from rlcore.models.weight_digest import UNVERIFIED, WeightSyncError, WeightUpdate
from rlcore.models.weight_files import write_state
from schemas.errors import UserError
from tests.rlcore.engines import faults
from tests.rlcore.engines.conftest import RemoteEngine, Synced, requests_of, update_of

pytestmark = pytest.mark.timeout(180)
VOCAB = 200


def prompts_of(count: int, *, length: int | None = None, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [draw.randrange(2, VOCAB) for _ in range(length or draw.randrange(3, 40))]
        for _ in range(count)
    ]


@torch.no_grad()
def reference_logprobs(model: Any, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    logits = model(torch.tensor([ids])).logits[0] / temperature
    return logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


@torch.no_grad()
def behind_the_best(model: Any, prompt: list[int], response: list[int]) -> float:
    """How far the response's tokens are from the most likely ones of ``model``, at most, in nats;
    two tokens may be equally likely to within rounding."""
    log_softmax = model(torch.tensor([prompt + response])).logits[0].log_softmax(-1)
    predicting = log_softmax[len(prompt) - 1 : -1]
    chosen = predicting.gather(-1, torch.tensor(response)[:, None])[:, 0]
    return float((predicting.max(-1).values - chosen).max())


def test_greedy_follows_each_sync(synced) -> None:
    """Stale layers, a stale tied head or a stale prefix cache would sample an older policy.

    The prompts fill four KV blocks and are in the prefix cache when the next weights come.
    """
    prompts = prompts_of(3, length=128)
    greedy, seen = Sampling(temperature=0.0, max_new_tokens=12), []
    for seed in range(3):
        stamp = synced.sync(seed)
        assert stamp == synced.engine.stamp()
        assert stamp.version == synced.version
        rows = synced.generate(prompts, [0, 1, 2], greedy)
        for prompt, row in zip(prompts, rows, strict=True):
            assert len(row.token_ids) == 12
            behind = behind_the_best(synced.model, prompt, row.token_ids)
            assert behind < 1e-3, f"sync {seed} did not reach sampling"
        seen.append([row.token_ids for row in rows])
    assert seen[0] != seen[1] != seen[2], "the test's models do not differ"


def test_probe_reads_the_loaded_weights(synced) -> None:
    sequences = prompts_of(5)
    for ids, row in zip(sequences, synced.engine.probe(sequences), strict=True):
        expected = reference_logprobs(synced.model, ids)
        torch.testing.assert_close(torch.tensor(row), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_of_the_distribution_sampled_from(synced, temperature: float) -> None:
    """Untempered log-probs would put a constant bias into every importance ratio."""
    prompts = prompts_of(12)
    sampling = Sampling(temperature=temperature, max_new_tokens=16)
    for prompt, row in zip(prompts, synced.generate(prompts, range(12), sampling), strict=True):
        expected = reference_logprobs(synced.model, prompt + row.token_ids, temperature)
        got = torch.tensor(row.logprobs)
        torch.testing.assert_close(got, expected[len(prompt) - 1 :], atol=1e-4, rtol=0)


def test_a_row_depends_on_its_own_seed_only(synced) -> None:
    """Rows that shared noise, or drew by position, would break resume and group diversity."""
    prompts, sampling = prompts_of(20), Sampling(max_new_tokens=16)
    seeds = [7 * row for row in range(20)]
    tokens = [row.token_ids for row in synced.generate(prompts, seeds, sampling)]
    alone = [
        synced.generate([prompts[row]], [seeds[row]], sampling)[0].token_ids for row in range(3)
    ]
    reverse = synced.generate(prompts[::-1], seeds[::-1], sampling)
    # Batches of other shapes round differently, so that now and then a draw on the border of two
    # tokens falls to the other side; with shared noise hardly a row would agree.
    assert sum(map(list.__eq__, alone, tokens[:3])) >= 2
    assert sum(map(list.__eq__, [row.token_ids for row in reverse][::-1], tokens)) >= 18
    samples = synced.generate([prompts[0]] * 8, range(8), sampling)
    assert len({tuple(row.token_ids) for row in samples}) == 8


def later_turns(synced: Synced, *, kept: bool) -> list[list[int]]:
    """The tokens of six episodes of three turns, whose log-probs are compared with the whole
    sequence's; ``kept``: the prefix cache stays from turn to turn."""
    sampling, engine = Sampling(max_new_tokens=9), synced.engine
    episodes = prompts_of(6, length=40)
    engine.begin()
    for turn in range(3):
        requests = [
            TurnRequest(f"{row}/{turn}", ids, 10 * turn + row, 4 + row)
            for row, ids in enumerate(episodes)
        ]
        if not kept:
            engine.begin()
        for row, answer in enumerate(engine.generate(requests, sampling)):
            ids = episodes[row]
            assert len(answer.token_ids) == requests[row].max_new_tokens
            whole = [*ids, *answer.token_ids]
            expected = reference_logprobs(synced.model, whole)[len(ids) - 1 :]
            torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=0)
            episodes[row] = [*whole, *prompts_of(1, length=30, seed=turn)[0]]
    return episodes


def test_a_later_turn_continues_its_episode(synced) -> None:
    """Its log-probs are those of the whole sequence, from a warm cache too: else every importance
    ratio behind the first turn is wrong."""
    episodes = later_turns(synced, kept=True)
    if not isinstance(synced.engine, RemoteEngine):
        return
    asked, computed = synced.engine.prefilled()
    assert computed < 0.7 * asked, "the cache was not used"
    assert later_turns(synced, kept=False) == episodes
    asked, computed = synced.engine.prefilled()
    assert computed == asked


def test_the_same_call_gives_the_same_bits(synced) -> None:
    """A resumed run must repeat an iteration exactly, whatever ran in the engine before it."""
    prompts, sampling = prompts_of(20, length=70), Sampling(max_new_tokens=16)
    first = synced.generate(prompts, range(20), sampling)
    synced.generate(prompts[:3], [50, 51, 52], sampling)
    synced.engine.probe(prompts[:2])
    assert synced.generate(prompts, range(20), sampling) == first


def test_whatever_follows_a_rest_finds_the_same_weights(synced) -> None:
    """An engine that sleeps wakes at any call; a sync may come first, or none at all."""
    prompts, greedy = prompts_of(3), Sampling(temperature=0.0, max_new_tokens=8)
    awake = synced.generate(prompts, [0, 1, 2], greedy)
    probed = synced.engine.probe(prompts)
    for _ in range(2):
        synced.engine.rest()
        synced.engine.rest()
        assert synced.engine.stamp() == awake[0].stamp
        assert synced.generate(prompts, [0, 1, 2], greedy) == awake
    synced.engine.rest()
    assert synced.engine.probe(prompts) == probed
    synced.engine.rest()
    requests = requests_of(prompts, [0, 1, 2], greedy)
    finished = dict(synced.engine.advance(requests, greedy, float("inf")))
    assert [finished[request.key].token_ids for request in requests] == [
        row.token_ids for row in awake
    ]
    synced.engine.rest()
    synced.sync(seed=7)
    (row,) = synced.generate(prompts[:1], [0], greedy)
    assert behind_the_best(synced.model, prompts[0], row.token_ids) < 1e-3


def test_stop_token_is_kept_and_ends_the_row(synced) -> None:
    """A dropped stop token would never be trained: the policy could not learn to stop."""
    stops = tuple(range(50, 62))
    sampling = Sampling(max_new_tokens=24, stop_token_ids=stops)
    rows = synced.generate(prompts_of(40), range(40), sampling)
    for row in rows:
        assert len(row.token_ids) == len(row.logprobs)
        assert not set(row.token_ids[:-1]) & set(stops)
        ended = row.token_ids[-1] in stops
        assert row.finish_reason == ("stop" if ended else "length")
        assert ended or len(row.token_ids) == 24
    assert {row.finish_reason for row in rows} == {"stop", "length"}


def test_eos_of_the_model_directory_does_not_stop_a_row(synced) -> None:
    """Stops come from the recipe; a second source would cut rows the recipe lets run."""
    rows = synced.generate(prompts_of(60), range(60), Sampling(max_new_tokens=24))
    assert any(1 in row.token_ids[:-1] for row in rows), "no row drew the config's eos"
    assert {row.finish_reason for row in rows} == {"length"}


def test_a_full_context_ends_the_row(synced) -> None:
    rows = synced.generate(prompts_of(2, length=250), [0, 1], Sampling(max_new_tokens=40))
    assert [(len(row.token_ids), row.finish_reason) for row in rows] == [(6, "length")] * 2


def test_top_k_and_top_p_keep_their_tokens(synced) -> None:
    prompts = prompts_of(30)
    for sampling in (
        Sampling(top_k=3, max_new_tokens=1),
        Sampling(top_p=0.2, temperature=0.8, max_new_tokens=1),
    ):
        rows = synced.generate(prompts, range(30), sampling)
        for prompt, row in zip(prompts, rows, strict=True):
            with torch.no_grad():
                logits = synced.model(torch.tensor([prompt])).logits[0, -1]
            probs, order = (logits / sampling.temperature).softmax(-1).sort(descending=True)
            kept = 3 if sampling.top_k == 3 else int((probs.cumsum(-1) < 0.2).sum()) + 1
            rank = order.tolist().index(row.token_ids[0])
            assert rank < kept
            expected = (probs[rank] / probs[:kept].sum()).log().item()
            assert row.logprobs[0] == pytest.approx(expected, abs=1e-4)


def test_long_prompt_is_refused_by_name(synced) -> None:
    """One long prompt inside vLLM fails the whole batch with an error that names no row."""
    prompts = [*prompts_of(2), [5] * 256]
    with pytest.raises(UserError, match=r"request '2' has 256 tokens and max_model_len is 256"):
        synced.generate(prompts, [0, 1, 2], Sampling())
    assert len(synced.generate(prompts[:2], [0, 1], Sampling(max_new_tokens=2))) == 2


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("dropped", rf"1 of \d+ tensors never reached the model's loader: '{faults.DROPPED}'"),
        ("swapped", r"2 of \d+ tensors .* other bytes .*'{}', '{}'".format(*faults.SWAPPED)),
        ("flipped", rf"1 of \d+ tensors .* other bytes than the learner holds: '{faults.FLIPPED}'"),
    ],
)
def test_bytes_that_are_not_the_senders_are_refused_by_name(
    synced, fault: str, sentence: str
) -> None:
    """The digest is taken at the loader: here the file is right and what is loaded is not."""
    update = synced.publish(synced.model)
    prompts, greedy = prompts_of(2), Sampling(temperature=0.0, max_new_tokens=4)
    with synced.fault(fault), pytest.raises(WeightSyncError, match=sentence):
        synced.engine.load_weights(update)
    assert synced.engine.stamp() == UNVERIFIED
    for refused in (
        lambda: synced.generate(prompts, [0, 1], greedy),
        lambda: synced.engine.probe(prompts),
    ):
        with pytest.raises(WeightSyncError, match="holds no proven weights"):
            refused()
    assert synced.engine.load_weights(update) == update.stamp
    rows = synced.generate(prompts, [0, 1], greedy)
    for prompt, row in zip(prompts, rows, strict=True):
        assert behind_the_best(synced.model, prompt, row.token_ids) < 1e-3


def test_a_file_changed_after_stamping_is_refused(synced) -> None:
    """The digest exists to prevent training on samples of weights without a stamp."""
    update = synced.publish(synced.model)
    state = load_file(update.path)
    state["model.norm.weight"] = state["model.norm.weight"] + 1e-3
    write_state(update.path, state)
    with pytest.raises(WeightSyncError, match=r"other bytes .*: 'model\.norm\.weight'"):
        synced.engine.load_weights(update)
    assert synced.engine.stamp() == UNVERIFIED


def test_a_partial_or_foreign_state_is_refused(synced) -> None:
    """vLLM loads a state with a tensor missing and leaves that layer uninitialised."""
    state = load_file(synced.publish(synced.model).path)
    norm = state.pop("model.norm.weight")
    cases = {
        "lacks 1 of": state,
        "which the model does not have": state
        | {"model.norm.weight": norm, "model.norm.bias": norm.clone()},
        r"of shape \(63,\)": state | {"model.norm.weight": norm[:63].clone()},
    }
    before, prompts = synced.engine.stamp(), prompts_of(4)
    greedy = Sampling(temperature=0.0, max_new_tokens=8)
    rows = synced.generate(prompts, [0] * 4, greedy)
    for sentence, wrong in cases.items():
        update = update_of(wrong, before.version + 1, synced.folder / "wrong.safetensors")
        with pytest.raises(WeightSyncError, match=sentence):
            synced.engine.load_weights(update)
    assert synced.engine.stamp() == before
    assert synced.generate(prompts, [0] * 4, greedy) == rows, "the old weights are gone"


def test_a_missing_file_is_named(synced, tmp_path: Path) -> None:
    update = WeightUpdate(synced.engine.stamp(), str(tmp_path / "gone.safetensors"), {})
    with pytest.raises(UserError, match=r"gone\.safetensors does not exist"):
        synced.engine.load_weights(update)
    assert synced.engine.stamp().version == synced.version


@pytest.mark.slow
def test_a_new_process_draws_the_same_tokens(engine_of, start_process) -> None:
    """Resume starts new engine processes; other tokens there would be another run."""
    synced = engine_of("vllm", True)
    synced.sync(seed=7)
    prompts, sampling = prompts_of(24), Sampling(max_new_tokens=16)
    update = synced.publish(synced.model)
    synced.engine.load_weights(update)
    here = synced.generate(prompts, range(24), sampling)
    requests = requests_of(prompts, range(24), sampling)
    process = start_process(synced.spec)
    process.call("again", "build", synced.spec)
    assert process.call("again", "stamp") == UNVERIFIED
    with pytest.raises(WeightSyncError, match="holds no proven weights"):
        process.call("again", "generate", requests, sampling)
    process.call("again", "load_weights", update)
    assert process.call("again", "generate", requests, sampling) == here
    for method in ("close", "close"):
        process.call("again", method)
