"""What a sandbox costs: the seconds of an empty program, at each level and without one.

    python -m tests.bench.sandbox

prints the medians as JSON; ``bare_s`` is the same interpreter, started as ``python -c pass``.
"""

import json
import statistics
import subprocess
import time
from collections.abc import Callable

from rlcore.sandbox.interpreter import environment_of, interpreter_in
from rlcore.sandbox.probe import levels_here
from rlcore.sandbox.sandbox import Sandbox
from rlcore.sandbox.slots import state_directory

REPEATS = 40


def measure(repeats: int = REPEATS) -> dict[str, float]:
    """Return median wall-clock seconds by name: ``bare_s``, ``namespaces_s``, ...

    What is compared takes turns, so that a busy moment of the machine meets all alike.
    """
    interpreter = interpreter_in(state_directory())
    environment = environment_of(interpreter)

    def bare() -> None:
        subprocess.run([interpreter, "-c", "pass"], env=environment, check=True)

    def sandboxed(sandbox: Sandbox) -> Callable[[], None]:
        def run() -> None:
            assert sandbox.run("pass").succeeded

        return run

    timed = {"bare_s": bare}
    timed |= {f"{level}_s": sandboxed(Sandbox(level)) for level in levels_here()}
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(repeats):
        for name, run in timed.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


if __name__ == "__main__":
    print(json.dumps(measure()))
