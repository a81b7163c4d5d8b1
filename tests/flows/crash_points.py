"""Runs the small pipeline and kills its own process, without warning, at a named point; or lets
it wait there ("pause"), alive, until the file ``GO`` is in its working directory.

python -m tests.flows.crash_points POINT OVERRIDES_JSON
"""

import contextlib
import ctypes
import functools
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

PROCESSES = "processes.json"
GO = "go-on"
MORE_BYTES = 200 << 20
M_MMAP_THRESHOLD = -3  # of mallopt
PAUSE_S = 200.0  # the longest that a run waits for ``GO``
# How the first engine is lost, and in which call of which round of them.
LOST = {
    "lose-idle": ("stream", signal.SIGKILL),
    "lose-row": ("turn", signal.SIGKILL),
    "lose-sync": ("start_load", signal.SIGKILL),
    "stop-row": ("turn", signal.SIGSTOP),
    "lose-evaluation": ("cannot_load_again", signal.SIGKILL),
}
KILL_ITERATION = {"rollout": 1, "reward": 2, "advantage": 2, "update": 3, "sync": 3}


def _die(*_: Any, **__: Any) -> None:
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _then_die(function: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
    """Return ``function`` followed by SIGKILL, on calls for which ``when`` is true."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if when(*args, **kwargs):
            _die()
        return result

    return wrapped


def _install(point: str) -> None:
    from rlcore.learner.learner import Learner
    from rlcore.rl.phases import Phases

    if point in KILL_ITERATION:
        # The phase is done, and its result is not recorded yet.
        def at(phases: Phases, state: Any, *_: Any) -> bool:
            return state.next_iteration == KILL_ITERATION[point]

        setattr(Phases, point, _then_die(getattr(Phases, point), at))
    elif point == "before-sync":
        # The weights are updated; engines and disk still have the old ones.
        def before(phases: Phases, state: Any, *_: Any) -> None:
            if state.next_iteration == 4:
                _die()

        original = Phases.sync
        Phases.sync = lambda self, state: (  # type: ignore[method-assign]
            before(self, state) or original(self, state)
        )
    elif point in LOST:
        _install_the_loss_of_an_engine(*LOST[point])
    elif point in ("half-full", "warm-up"):
        _install_within_iteration_2(Phases, point)
    elif point in INSTALLED:
        INSTALLED[point](Phases)
    elif point == "checkpoint":
        # The state is saved; it is not yet an artifact.
        Learner.save = _then_die(Learner.save, lambda *_: True)  # type: ignore[method-assign]
    elif point == "sft":
        count = {"steps": 0}

        def seventh(*_: Any) -> bool:
            count["steps"] += 1
            return count["steps"] == 7

        Learner.step = _then_die(Learner.step, seventh)  # type: ignore[method-assign]
    elif point == "skip-sync":
        import rlcore.rl.phases
        from rlcore.models.weight_digest import WeightUpdate
        from rlcore.rl.sync import Offered

        def skipped(learner: Any, engines: Any, canary: Any, **options: Any) -> Any:
            stamp = learner.stamp()
            if stamp.version == 0:  # the start is synced
                return original_sync(learner, engines, canary, **options)
            unsent: Any = None  # the canary's log-probs, which nobody asks for
            return Offered(WeightUpdate(stamp, "", {}), unsent), 0.0

        original_sync = rlcore.rl.phases.sync_weights
        rlcore.rl.phases.sync_weights = skipped
    elif point == "export":
        import rlcore.evaluation.export

        # The model is written and verified; it is not yet in its final place.
        rlcore.evaluation.export.put_in_place = _die
    elif point:
        raise SystemExit(f"unknown crash point {point!r}")


def _install_within_iteration_2(phases_class: Any, point: str) -> None:
    """Install the crash points that only some algorithms reach."""
    if point == "half-full":
        # One more generation round is scored and stored, and does not fill the batch.
        def second_round(phases: Any, state: Any, rollouts: Any) -> bool:
            return rollouts.key.endswith("000002-1")

        phases_class.reward = _then_die(phases_class.reward, second_round)
    else:
        # The critic has stepped twice; the policy has not moved yet.
        def critic_alone(phases: Any, state: Any, *_: Any) -> bool:
            return state.next_iteration == 2 and not state.trains_policy(phases.recipe.rl)

        phases_class.update = _then_die(phases_class.update, critic_alone)


def _install_the_loss_of_an_engine(method: str, how: signal.Signals) -> None:
    """Have the first engine get the signal ``how`` when ``method`` of its pool is called for the
    third time: before it is asked for rows, or once it has been asked."""
    from rlcore.engines.pool import EnginePool

    original, calls = getattr(EnginePool, method), [0]

    def loses(pool: Any, *arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        result = None if method == "stream" else original(pool, *arguments, **options)
        if calls[0] == 3:
            process = pool[0].process()
            process.send_signal(how)
            Path(PROCESSES).write_text(json.dumps([process.pid]))
        return original(pool, *arguments, **options) if result is None else result

    setattr(EnginePool, method, loses)


def _install_pause(phases_class: Any) -> None:
    """Install the point at which two iterations are recorded and the third waits for ``GO``."""
    original = phases_class.rollout

    def rollout(phases: Any, state: Any, groups: Any) -> Any:
        deadline = time.monotonic() + PAUSE_S
        while state.next_iteration == 3 and not Path(GO).exists():
            assert time.monotonic() < deadline, f"nobody wrote {GO}"
            time.sleep(0.1)
        return original(phases, state, groups)

    phases_class.rollout = rollout


def _install_a_limit_of_memory(phases_class: Any) -> None:
    """From the update of iteration 2 on, let the process take ``MORE_BYTES`` of address space in
    addition to what it has then."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)  # what is freed is given back
    original = phases_class.update

    def update(phases: Any, state: Any, *arguments: Any) -> Any:
        if state.next_iteration == 2 and resource.getrlimit(resource.RLIMIT_AS)[0] < 0:
            held = psutil.Process().memory_info().vms
            resource.setrlimit(resource.RLIMIT_AS, (held + MORE_BYTES, -1))
        return original(phases, state, *arguments)

    phases_class.update = update


def _install_while_a_checkpoint_is_written(phases_class: Any) -> None:
    """Install the point at which the rewards of iteration 3 are recorded, and the files of the
    second checkpoint are written and not yet in place."""
    from rlcore.store.local import LocalFiles

    written, original = threading.Event(), LocalFiles.publish

    def publish(
        files: Any, location: str, contents: Any, manifest: Any, fence: Any, **how: Any
    ) -> bool:
        if not location.startswith("checkpoint/") or not location.endswith("/000002"):
            return original(files, location, contents, manifest, fence, **how)

        @contextlib.contextmanager
        def held() -> Iterator[None]:
            written.set()
            time.sleep(PAUSE_S)
            with fence():
                yield

        return original(files, location, contents, manifest, held, **how)

    def while_written(phases: Any, state: Any, *_: Any) -> bool:
        return state.next_iteration == 3 and written.wait(PAUSE_S)

    setattr(LocalFiles, "publish", publish)  # noqa: B010  whose own has typed arguments
    phases_class.reward = _then_die(phases_class.reward, while_written)


def _install_in_the_sandbox(phases_class: Any) -> None:
    """Install the crash point at which a program of iteration 2 runs in the sandbox.

    The file ``PROCESSES`` then holds the ids of all processes that were started, a JSON list.
    """
    original = phases_class.rollout  # rows are scored as they are sampled

    def rollout(phases: Any, state: Any, groups: Any) -> Any:
        if state.next_iteration == 2:
            threading.Thread(target=_die_with_a_program, daemon=True).start()
        return original(phases, state, groups)

    phases_class.rollout = rollout


def _die_with_a_program() -> None:
    from rlcore.sandbox.interpreter import INSIDE

    while True:
        found = psutil.Process().children(recursive=True)
        if any(any(word.endswith(INSIDE) for word in _command(process)) for process in found):
            Path(PROCESSES).write_text(json.dumps([process.pid for process in found]))
            _die()
        time.sleep(0.002)


def _command(process: Any) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended
        return []


INSTALLED: dict[str, Callable[[Any], None]] = {
    "pause": _install_pause,
    "memory": _install_a_limit_of_memory,
    "in-the-sandbox": _install_in_the_sandbox,
    "write": _install_while_a_checkpoint_is_written,
}


def main() -> None:
    """Install the crash point, then run the pipeline; a traceback is the last that it prints."""
    point, recipe, overrides = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    parameters = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
    _install(point)
    from flows.inline import end
    from flows.rl_pipeline import rl_pipeline

    try:
        rl_pipeline(recipe=recipe, overrides=overrides, **parameters)
    except Exception:  # noqa: BLE001 - what a run ends with is printed
        end(1, traceback.format_exc())
    end(0)  # as `rl-pipeline run`


if __name__ == "__main__":
    main()
