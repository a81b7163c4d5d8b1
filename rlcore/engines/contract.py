"""What every rollout engine must do, as checks that its author can run.

    python -m rlcore.engines.contract package.module:Class MODEL_DIR

prints a line per check and exits with 1 where one is broken; MODEL_DIR: a small Hugging Face model.
In a test of pytest: ``assert broken("package.module:Class", "path/to/model") == {}``.

The reference is the transformers model of the directory, in float32.
"""

import argparse
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rlcore.engines.registry import engine_kind
from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec, Generation, RolloutEngine, Sampling, TurnRequest
from rlcore.models.weight_digest import (
    UNVERIFIED,
    WeightStamp,
    WeightSyncError,
    WeightUpdate,
    combined_digest,
    tensor_digests,
)
from rlcore.models.weight_files import read_checkpoint, write_state
from schemas.errors import UserError
from schemas.outcomes import FinishReason

if TYPE_CHECKING:
    import torch

NEAR = 1e-4  # nats between the log-probs of one token, float32
BEHIND = 1e-3  # nats of a greedy token behind the likeliest: two may be equal to within rounding
CONTEXT = 160  # tokens
ROWS, LENGTH, NEW = 8, 24, 6  # requests, tokens of a prompt, tokens sampled
SAME = 0.75  # share of rows that batches of other shapes, which round differently, may not change
OTHER = 0.7  # another policy: the weights times this
GREEDY = Sampling(temperature=0.0, max_new_tokens=NEW)
SAMPLED = Sampling(max_new_tokens=NEW)


class Broken(Exception):
    """An engine does not do what it must; the message says what was expected."""


@dataclass
class Subject:
    """The engine under test, and the reference that has the same weights."""

    engine: RolloutEngine
    reference: TransformersEngine
    state: "dict[str, torch.Tensor]"
    folder: Path
    version: int = 0

    def update(self, state: "Mapping[str, torch.Tensor]") -> WeightUpdate:
        """Return ``state`` as the learner sends it."""
        self.version += 1
        path = self.folder / f"{self.version}.safetensors"
        write_state(path, state)
        tensors = tensor_digests(state.items())
        stamp = WeightStamp(self.version, combined_digest(tensors))
        return WeightUpdate(stamp, str(path), tensors)

    def load(self, factor: float = 1.0) -> WeightUpdate:
        """Load the directory's weights times ``factor`` into both."""
        update = self.update({name: factor * tensor for name, tensor in self.state.items()})
        self.reference.load_weights(update)
        stamp = self.engine.load_weights(update)
        _expect(stamp == update.stamp, f"load_weights returned {stamp}, not {update.stamp}")
        _expect(self.engine.stamp() == stamp, "stamp() is not what load_weights returned")
        return update

    def requests(self, count: int = ROWS, length: int = LENGTH) -> list[TurnRequest]:
        """Return requests of random prompts, seeds 0, 1, ..."""
        draw = random.Random(length)
        vocabulary = range(self.reference.vocab_size)
        prompts = [draw.choices(vocabulary, k=length) for _ in range(count)]
        return [TurnRequest(f"e{row}/0", ids, row, NEW) for row, ids in enumerate(prompts)]

    def sample(
        self, requests: Sequence[TurnRequest], sampling: Sampling = SAMPLED
    ) -> list[Generation]:
        """Return the answers of a new rollout, one per request."""
        self.engine.begin()
        rows = self.engine.generate(requests, sampling)
        _expect(len(rows) == len(requests), f"{len(rows)} rows for {len(requests)} requests")
        for row in rows:
            _expect(len(row.logprobs) == len(row.token_ids), "a log-prob of each token is due")
            _expect(row.stamp == self.engine.stamp(), "a row has another stamp than the engine")
        return rows

    def compare(
        self, requests: Sequence[TurnRequest], rows: Sequence[Generation], temperature: float = 1.0
    ) -> None:
        """Expect the log-probs of ``rows`` to be those of the reference at ``temperature``."""
        for request, row in zip(requests, rows, strict=True):
            whole = [*request.token_ids, *row.token_ids]
            logprobs_TV = (self.reference.logits(whole) / temperature).log_softmax(-1)
            behind = range(len(request.token_ids) - 1, len(whole) - 1)
            expected = [logprobs_TV[at, whole[at + 1]].item() for at in behind]
            _near(row.logprobs, expected, f"log-probs of generate at temperature {temperature:g}")


def new_holds_nothing(it: Subject) -> None:
    _expect(it.engine.stamp() == UNVERIFIED, "stamp() of a new engine is not UNVERIFIED")
    _refuses_to_sample(it)


def loads_and_says_what(it: Subject) -> None:
    it.load()


def probe_is_of_the_weights(it: Subject) -> None:
    sequences = [request.token_ids for request in it.requests()]
    rows = it.engine.probe(sequences)
    for got, expected in zip(rows, it.reference.probe(sequences), strict=True):
        _near(got, expected, "probe")


def logprobs_are_of_what_was_sampled(it: Subject) -> None:
    requests = it.requests()
    for temperature in (1.0, 0.6):
        sampling = replace(SAMPLED, temperature=temperature)
        rows = it.sample(requests, sampling)
        it.compare(requests, rows, temperature)
    rows = it.sample(requests)
    wholes = [[*r.token_ids, *row.token_ids] for r, row in zip(requests, rows, strict=True)]
    for row, probed in zip(rows, it.engine.probe(wholes), strict=True):
        _near(row.logprobs, probed[-len(row.logprobs) :], "generate against probe, log-probs")


def greedy_is_the_likeliest(it: Subject) -> None:
    requests = it.requests()
    for request, row in zip(requests, it.sample(requests, GREEDY), strict=True):
        whole = [*request.token_ids, *row.token_ids]
        logprobs_TV = it.reference.logits(whole).log_softmax(-1)
        for at in range(len(request.token_ids) - 1, len(whole) - 1):
            behind = (logprobs_TV[at].max() - logprobs_TV[at, whole[at + 1]]).item()
            _expect(behind < BEHIND, f"at temperature 0 a token is {behind:.2g} behind the best")


def a_rerun_has_the_same_bits(it: Subject) -> None:
    requests = it.requests()
    first = it.sample(requests)
    it.sample(requests[:3], replace(SAMPLED, temperature=0.8))
    _expect(it.sample(requests) == first, "the same rollout again gave other tokens or log-probs")


def a_row_depends_on_its_own_seed(it: Subject) -> None:
    requests = it.requests()
    first = [row.token_ids for row in it.sample(requests)]
    reordered = [row.token_ids for row in it.sample(requests[::-1])][::-1]
    _mostly_same(reordered, first, "rows in another order")
    alone = [it.sample([request])[0].token_ids for request in requests[:4]]
    _mostly_same(alone, first[:4], "a row without the others")
    one = [replace(requests[0], key=f"e{seed}/0", seed=seed) for seed in range(8)]
    drawn = {tuple(row.token_ids) for row in it.sample(one)}
    _expect(len(drawn) > 4, f"8 seeds drew {len(drawn)} different answers to one prompt")


def a_stop_token_ends_its_row(it: Subject) -> None:
    requests = it.requests()
    stops = tuple({row.token_ids[NEW // 2] for row in it.sample(requests)})
    rows = it.sample(requests, replace(SAMPLED, stop_token_ids=stops))
    for row in rows:
        inside, last = row.token_ids[:-1], row.token_ids[-1]
        _expect(not set(inside) & set(stops), "a row continues behind a stop token")
        stopped = last in stops
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        _expect(row.finish_reason == reason, f"{row.finish_reason} of a row that ended by {reason}")
        _expect(stopped or len(row.token_ids) == NEW, "a row ended before its budget")
    ended = any(row.finish_reason == FinishReason.STOP for row in rows)
    _expect(ended, "no row ended with a stop token, which belongs to the row")


def a_row_keeps_its_own_budget(it: Subject) -> None:
    requests = [replace(r, max_new_tokens=1 + row % NEW) for row, r in enumerate(it.requests())]
    for request, row in zip(requests, it.sample(requests), strict=True):
        got = (len(row.token_ids), row.finish_reason)
        expected = (request.max_new_tokens, FinishReason.LENGTH)
        _expect(got == expected, f"a row of {expected} has (tokens, finish_reason) {got}")
    rows = it.sample(it.requests(2, length=CONTEXT - 3))
    ends = {(len(row.token_ids), row.finish_reason) for row in rows}
    _expect(ends == {(3, FinishReason.LENGTH)}, f"with room for 3 tokens rows end as {ends}")


def wrong_requests_are_refused(it: Subject) -> None:
    request = it.requests(1)[0]
    for what, token_ids in (("an empty prompt", []), ("a prompt without room", [5] * CONTEXT)):
        wrong = [request, replace(request, key="e1/0", token_ids=token_ids)]
        _refuses(UserError, lambda wrong=wrong: it.sample(wrong), what)
    _expect(len(it.sample([request])) == 1, "nothing is sampled after a refused request")


def a_later_turn_continues_its_episode(it: Subject) -> None:
    requests, more = it.requests(), it.requests(ROWS, length=17)
    rows = it.sample(requests)
    following = [
        TurnRequest(f"e{n}/1", [*r.token_ids, *row.token_ids, *seen.token_ids], 90 + n, NEW)
        for n, (r, row, seen) in enumerate(zip(requests, rows, more, strict=True))
    ]
    it.compare(following, it.engine.generate(following, SAMPLED))


def advance_samples_what_generate_does(it: Subject) -> None:
    requests = [replace(r, max_new_tokens=1 + row % NEW) for row, r in enumerate(it.requests())]
    expected = [row.token_ids for row in it.sample(requests)]
    it.engine.begin()
    found: dict[str, Generation] = {}
    coming = [requests[:5], requests[5:], *([[]] * (ROWS * NEW))]
    for share in coming:
        for key, row in it.engine.advance(share, SAMPLED, 0.0):
            _expect(key not in found, f"advance returned '{key}' twice")
            found[key] = row
        if len(found) == len(requests) and not share:
            break
    lost = [request.key for request in requests if request.key not in found]
    _expect(not lost, f"advance never returned {lost}")
    _mostly_same([found[r.key].token_ids for r in requests], expected, "rows of advance")


def new_weights_leave_nothing_of_the_old(it: Subject) -> None:
    requests = it.requests()
    it.sample(requests, GREEDY)
    it.load(OTHER)
    it.compare(requests, it.engine.generate(requests, SAMPLED))
    probe_is_of_the_weights(it)
    greedy_is_the_likeliest(it)
    it.load()


def weights_of_another_model_are_refused(it: Subject) -> None:
    name, tensor = max(it.state.items(), key=lambda item: item[1].numel())
    wrong = {
        "without one tensor": {key: each for key, each in it.state.items() if key != name},
        "with a tensor that the model has not": it.state | {"not.of.the.model": tensor[:1].clone()},
        "with a tensor of another shape": it.state | {name: tensor[:-1].clone()},
    }
    requests, stamp = it.requests(), it.engine.stamp()
    before = it.sample(requests)
    for what, state in wrong.items():
        update = it.update(state)
        _refuses(WeightSyncError, lambda update=update: it.engine.load_weights(update), what)
        _expect(it.engine.stamp() == stamp, f"a refused state {what} changed the stamp")
    _expect(it.sample(requests) == before, "a refused state changed what is sampled")


def other_bytes_are_refused(it: Subject) -> None:
    update = it.update(it.state)
    name = min(it.state)
    write_state(update.path, {**it.state, name: it.state[name] + 1e-3})
    _refuses(WeightSyncError, lambda: it.engine.load_weights(update), "other bytes than were sent")
    _expect(it.engine.stamp() == UNVERIFIED, "after it stamp() is not UNVERIFIED")
    _refuses_to_sample(it)
    it.load()
    probe_is_of_the_weights(it)


def it_keeps_no_view_of_the_file(it: Subject) -> None:
    sequences = [request.token_ids for request in it.requests()]
    update = it.load()
    before = it.engine.probe(sequences)
    with Path(update.path).open("r+b") as file:  # in place, as the learner writes its next weights
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        file.write(bytes(size))
    same = it.engine.probe(sequences) == before
    _expect(same, "another log-prob once the learner has written over the file that was loaded")
    it.load()


def closes_twice(it: Subject) -> None:
    it.engine.close()
    it.engine.close()


CHECKS: tuple[Callable[[Subject], None], ...] = (
    new_holds_nothing,
    loads_and_says_what,
    probe_is_of_the_weights,
    logprobs_are_of_what_was_sampled,
    greedy_is_the_likeliest,
    a_rerun_has_the_same_bits,
    a_row_depends_on_its_own_seed,
    a_stop_token_ends_its_row,
    a_row_keeps_its_own_budget,
    wrong_requests_are_refused,
    a_later_turn_continues_its_episode,
    advance_samples_what_generate_does,
    new_weights_leave_nothing_of_the_old,
    weights_of_another_model_are_refused,
    other_bytes_are_refused,
    it_keeps_no_view_of_the_file,
    closes_twice,
)


def broken(name: str, model_dir: str | Path, *, device: str = "cpu") -> dict[str, str]:
    """Return which checks the engine ``name`` breaks, by name, and how; it is built here.

    ``name``: as in ``hardware.rollout.engine``. Raises UserError for a class that is no engine.
    """
    spec, kind = _spec(model_dir, device), engine_kind(name)
    module, _, attribute = kind.target.partition(":")
    engine = getattr(import_module(module), attribute)(spec, *kind.arguments)
    return broken_by(engine, spec)


def broken_by(engine: RolloutEngine, spec: EngineSpec) -> dict[str, str]:
    """Return the same of a new ``engine``, which was built of ``spec`` and holds no weights."""
    reference = TransformersEngine(replace(spec, device="cpu"))
    state = {name: tensor.float() for name, tensor in read_checkpoint(spec.model_dir).items()}
    found = {}
    with TemporaryDirectory() as folder:
        subject = Subject(engine, reference, state, Path(folder))
        for check in CHECKS:
            try:
                check(subject)
            except Broken as error:
                found[_title(check)] = str(error)
            except Exception as error:  # noqa: BLE001 - the engine's own, whatever it is
                found[_title(check)] = f"{type(error).__name__}: {error}"
    return found


def _spec(model_dir: str | Path, device: str) -> EngineSpec:
    return EngineSpec(str(model_dir), max_model_len=CONTEXT, max_num_seqs=2 * ROWS, device=device)


def _title(check: Callable[[Subject], None]) -> str:
    return check.__name__.replace("_", " ")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


def _near(got: Sequence[float], expected: Sequence[float], what: str) -> None:
    _expect(len(got) == len(expected), f"{what}: {len(got)} values where {len(expected)} are due")
    worst = max((abs(a - b) for a, b in zip(got, expected, strict=True)), default=0.0)
    _expect(worst <= NEAR, f"{what}: {worst:.2g} nats off, and {NEAR:g} are allowed")


def _mostly_same(got: Sequence[list[int]], expected: Sequence[list[int]], what: str) -> None:
    same = sum(a == b for a, b in zip(got, expected, strict=True))
    _expect(same >= SAME * len(expected), f"{what}: {same} of {len(expected)} have the same tokens")


def _refuses(error: type[Exception], call: Callable[[], object], what: str) -> None:
    try:
        call()
    except error:
        return
    raise Broken(f"{what}: not refused by {error.__name__}")


def _refuses_to_sample(it: Subject) -> None:
    requests = it.requests(1)
    _refuses(WeightSyncError, lambda: it.sample(requests), "generate without verified weights")
    sequences = [requests[0].token_ids]
    _refuses(WeightSyncError, lambda: it.engine.probe(sequences), "probe without verified weights")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the engine that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m rlcore.engines.contract", description=__doc__)
    parser.add_argument("name", help="vllm, transformers, package.module:Class or file.py:Class")
    parser.add_argument("model_dir", help="a small Hugging Face model")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args(arguments)
    try:
        environment = engine_kind(given.name).environment(_spec(given.model_dir, given.device))
        if any(os.environ.get(key) != value for key, value in environment.items()):
            program = [sys.executable, "-m", "rlcore.engines.contract"]
            words = [given.name, given.model_dir, "--device", given.device]
            os.execve(sys.executable, [*program, *words], {**os.environ, **environment})
        found = broken(given.name, given.model_dir, device=given.device)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    for check in CHECKS:
        title = _title(check)
        print(f"BROKEN  {title}: {found[title]}" if title in found else f"holds   {title}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
