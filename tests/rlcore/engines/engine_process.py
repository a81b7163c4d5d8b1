"""Runs vLLM engines in a process of their own, as an actor does: vLLM patches process globals.

Started by ``conftest.EngineProcess``. Reads ``(engine, method, args)`` from the connection whose
file descriptor is argv[1], answers ``(ok, value or exception)``; method "build" takes a spec,
"inject" the name of a fault for all engines (``tests.rlcore.engines.faults``), "heal" ends it.
"""

import sys
from multiprocessing.connection import Connection

from rlcore.engines.vllm_engine import VllmEngine
from tests.rlcore.engines.faults import inject


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    engines: dict[str, VllmEngine] = {}
    heal = None
    while True:
        try:
            name, method, arguments = connection.recv()
        except EOFError:
            return
        try:
            if method == "build":
                engines[name] = VllmEngine(*arguments)
                answer = None
            elif method == "inject":
                heal, answer = inject(*arguments), None
            elif method == "heal":
                answer = heal and heal()
            else:
                call = {
                    "begin": engines[name].begin,
                    "generate": engines[name].generate,
                    "advance": engines[name].advance,
                    "prefilled": engines[name].prefilled,
                    "probe": engines[name].probe,
                    "load_weights": engines[name].load_weights,
                    "stamp": engines[name].stamp,
                    "rest": engines[name].rest,
                    "close": engines[name].close,
                }[method]
                answer = call(*arguments)
        except Exception as error:  # noqa: BLE001 - the test process raises it again
            connection.send((False, error))
        else:
            connection.send((True, answer))


if __name__ == "__main__":
    main()
