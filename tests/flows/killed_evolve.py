"""Runs ``rl-pipeline evolve`` and kills its own process when the verifiers of a round are asked.

python -m tests.flows.killed_evolve ROUND ARGUMENT...    (round 0: never)
"""

import os
import signal
import sys
from typing import Any

from flows.cli import main
from rlcore.evolve.agents import Agents


def _install(number: int) -> None:
    verdicts = Agents.verdicts

    def dying(self: Agents, asks: Any) -> Any:
        if asks and asks[0].names[1] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return verdicts(self, asks)

    Agents.verdicts = dying  # type: ignore[method-assign]


if __name__ == "__main__":
    _install(int(sys.argv[1]))
    sys.exit(main(["evolve", *sys.argv[2:]]))
