"""All rollout engines of a run as one sampler: prompts are shared out, weights loaded into all,
answers put back in order."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from rlcore.cluster.spans import Span, Spans
from rlcore.cluster.types import (
    POLL_S,
    Pending,
    Worker,
    WorkerError,
    as_completed,
    is_lost,
)
from rlcore.engines.members import Members, StartNew
from rlcore.engines.streaming import RequestStream, lane
from rlcore.engines.types import Generation, Sampling, TurnRequest
from rlcore.models.weight_digest import (
    WeightStamp,
    WeightSyncError,
    WeightUpdate,
    combined_digest,
    tensor_digests,
)
from rlcore.models.weight_files import exchange_file, read_checkpoint, write_state


class EnginePool(Members):
    """Splits requests over engines; every engine must hold the same weights.

    ``timeout_s`` bounds each wait and ``sync_timeout_s`` each weight load, in seconds;
    ``in_flight``: most requests that a streaming engine has under way. ``gpus``: that the engines
    hold together, as shares.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        timeout_s: float,
        sync_timeout_s: float,
        in_flight: int = 256,
        gpus: float = 0.0,
        start_new: StartNew | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(workers, sync_timeout_s=sync_timeout_s, start_new=start_new, log=log)
        self._busy = Spans()
        self._in_flight = in_flight
        self._timeout_s = timeout_s
        self.gpus = gpus

    def taken_spans(self) -> list[Span]:
        """Return what each engine was asked for since the last call, until it had answered: ``gen``
        a share, ``sync`` the load of weights."""
        return self._busy.taken()

    def stream(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> Iterator[tuple[int, Generation]]:
        """Yield (index of the prompt, its continuation) as the engines complete their shares: a
        rollout of one turn.

        Shares are contiguous, so that the samples of one prompt share a prefix cache.
        """
        requests = _single_turns(prompts, seeds, sampling)
        share = max(1, -(-len(requests) // len(self)))
        shares = [requests[start : start + share] for start in range(0, len(requests), share)]
        begun = self._start_each("begin")
        finished = self.turn(shares, sampling)  # each engine serves its calls in order
        begun()
        for key, generation in finished:
            yield int(key), generation

    def pulled(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> Iterator[tuple[int, Generation]]:
        """Yield the same as ``stream``, where engines take the next prompts as they get free."""
        stream = self.streaming(sampling)
        stream.submit(_single_turns(prompts, seeds, sampling))
        while len(stream):
            for key, generation in stream.finished(POLL_S):
                yield int(key), generation

    def begin(self) -> None:
        """Tell every engine that a rollout begins; see ``RolloutEngine.begin``."""
        self._start_each("begin")()

    def rest(self) -> None:
        """Tell every engine that the rollout is over; see ``RolloutEngine.rest``."""
        self._start_each("rest")()

    def turn(
        self, shares: Sequence[Sequence[TurnRequest]], sampling: Sampling
    ) -> Iterator[tuple[str, Generation]]:
        """Yield (key, continuation) as the engines complete their shares.

        Engine i samples ``shares[i]`` as one batch, in this order; an empty share causes no call.
        The engines have begun when this returns.
        """
        assert len(shares) <= len(self), "a share per engine"
        engines = [index for index, share in enumerate(shares) if share]
        asked = [[request.plain() for request in shares[index]] for index in engines]
        workers = [self[index] for index in engines]
        pendings, began = [], []
        for worker, requests in zip(workers, asked, strict=True):
            began.append(perf_counter())
            pendings.append(worker.start("generate", requests, sampling))

        def again(call: int, error: WorkerError) -> Pending:
            workers[call] = self.successor(engines[call], workers[call], error)
            return workers[call].start("generate", asked[call], sampling)

        names = [f"rollout engine '{worker.name}'" for worker in workers]
        parts = as_completed(pendings, self._timeout_s, names=names, method="generate", again=again)

        def answers() -> Iterator[tuple[str, Generation]]:
            for call, part in parts:
                self.answered(engines[call])
                self._busy.add(lane(engines[call]), "gen", began[call])
                for request, generation in zip(asked[call], part, strict=True):
                    yield request.key, generation

        return answers()

    def streaming(self, sampling: Sampling) -> RequestStream:
        """Begin a rollout whose requests come at any time and are shared as engines get free."""
        self.begin()
        return RequestStream(
            self,
            sampling,
            in_flight=self._in_flight,
            timeout_s=self._timeout_s,
            busy=self._busy,
        )

    def load_weights(self, update: WeightUpdate) -> WeightStamp:
        """Load ``update`` into every engine. Raises WeightSyncError naming the engine when one
        refuses, or was handed other weights."""
        return self.start_load(update)()

    def start_load(self, update: WeightUpdate) -> Callable[[], WeightStamp]:
        """Start ``load_weights``; return a function that waits for it."""
        self.loaded(update)
        began = perf_counter()
        wait = self._start_each("load_weights", update)

        def loaded() -> WeightStamp:
            stamps = wait()
            for index in range(len(self)):
                self._busy.add(lane(index), "sync", began)
            return self._agreed(stamps, update.stamp)

        return loaded

    def start_probe(
        self, token_ids: Sequence[Sequence[int]]
    ) -> Callable[[], dict[str, list[list[float]]]]:
        """Ask all for the log-probs of the same ids, see ``RolloutEngine.probe``; return a function
        that waits for them, by engine name."""
        asked = [list(map(int, ids)) for ids in token_ids]
        wait = self._start_each("probe", asked)

        def answers() -> dict[str, list[list[float]]]:
            found = wait()
            self.probed(asked, found[0])
            return {self[index].name: probed for index, probed in enumerate(found)}

        return answers

    def stamp(self) -> WeightStamp:
        """Return the stamp that all engines sample from. Raises WeightSyncError if they differ."""
        stamps = self._start_each("stamp")()
        return self._agreed(stamps, stamps[0])

    def _start_each(self, method: str, *arguments: Any) -> Callable[[], list[Any]]:
        """Call ``method`` on every engine, all at once; return a function that waits for the
        answers. An engine's refusal is raised with its name."""
        pendings: list[tuple[Worker, Pending]] = []
        for index in range(len(self)):
            worker = self[index]
            with _naming(worker):
                pendings.append((worker, worker.start(method, *arguments)))

        def wait() -> list[Any]:
            deadline, answers = monotonic() + self._sync_timeout_s, []
            for index, (worker, pending) in enumerate(pendings):
                with _naming(worker):
                    try:
                        answers.append(pending.result(max(0.0, deadline - monotonic())))
                    except WorkerError as error:
                        if not is_lost(error):
                            raise
                        other = self.successor(index, worker, error)
                        deadline = monotonic() + self._sync_timeout_s
                        again = other.start(method, *arguments)
                        answers.append(again.result(self._sync_timeout_s))
            return answers

        return wait

    def _agreed(self, stamps: list[WeightStamp], expected: WeightStamp) -> WeightStamp:
        for index, stamp in enumerate(stamps):
            if stamp != expected:
                raise WeightSyncError(
                    f"rollout engine '{self[index].name}' holds weights version"
                    f" {stamp.version}"
                    f" (digest {stamp.digest[:12]}) but version {expected.version} (digest"
                    f" {expected.digest[:12]}) was expected; rerun the flow to sync it again"
                )
        return expected


def _single_turns(
    prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
) -> list[TurnRequest]:
    """Return a request per prompt, whose key is the prompt's index."""
    return [
        TurnRequest(str(index), prompt, seed, sampling.max_new_tokens)
        for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
    ]


@contextmanager
def _naming(worker: Worker) -> Iterator[None]:
    """Prefix the engine's name to its refusal."""
    try:
        yield
    except WeightSyncError as error:
        raise WeightSyncError(f"rollout engine '{worker.name}': {error}") from error


def load_model_directory(engines: EnginePool, model_dir: Path) -> WeightStamp:
    """Make every engine sample from the Hugging Face directory ``model_dir``; return the stamp.

    Raises WeightSyncError when an engine loaded anything else.
    """
    state = read_checkpoint(model_dir)
    tensors = tensor_digests(state.items())
    with exchange_file() as path:
        write_state(path, state)
        stamp = WeightStamp(0, combined_digest(tensors))
        held = engines.load_weights(WeightUpdate(stamp, str(path), tensors))
    engines.cannot_load_again()
    return held
