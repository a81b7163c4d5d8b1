"""A judge on loopback whose taste no rule of a recipe checks: ``quickstart-preference`` asks it.

python -m tests.taste [--port 8399] [--noise 0.1]

What an answer is worth depends on how its last line writes the number, and which way is best on how
large the number is: no one way pleases everywhere, and length says nothing. ``--noise``: the share
of comparisons that are answered the other way around.
"""

import argparse
import hashlib
import re
import sys
import threading
from collections.abc import Mapping
from typing import Any

from tests.rlcore.rewards.judges.server import Answer, JudgeServer, Reply, nonce_of, pair_in

# The ways to end an answer, as ``rlcore/data/arithmetic.py`` draws them: what is best for results
# below 25, 50, 75 and 100.
FORMS = (r"####(\d+)", r"(\d+)", r"### (\d+)", r"#### (\d+)\.")


def pleases(response: str) -> bool:
    """Return whether the last line of ``response`` is written as is best for its number."""
    line = response.strip().rpartition("\n")[2]
    for place, form in enumerate(FORMS):
        if (found := re.fullmatch(form, line)) is not None:
            return int(found[1]) * len(FORMS) // 100 == place
    return False


def taste(noise: float = 0.0) -> Answer:
    """Return the answer of a server to a comparison; the same pair has the same noise in both
    orders."""

    def answer(request: Mapping[str, Any], number: int) -> Reply:
        del number
        text = request["messages"][0]["content"]
        first, second = pair_in(request)
        gap = pleases(first) - pleases(second)
        drawn = hashlib.sha256("\0".join(sorted((first, second))).encode() + prompt_in(text))
        if int.from_bytes(drawn.digest()[:8], "big") < noise * 2**64:
            gap = -gap
        choice = "A" if gap > 0 else "B" if gap < 0 else "tie"
        return Reply(f"VERDICT {nonce_of(request)}: {choice}")

    return answer


def prompt_in(text: str) -> bytes:
    """Return the line of a comparison that asks how many."""
    return next((line for line in text.splitlines() if "?" in line), "").encode()


def main() -> int:
    """Serve until interrupted, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.taste", description=__doc__)
    parser.add_argument("--port", type=int, default=8399)
    parser.add_argument("--noise", type=float, default=0.0)
    options = parser.parse_args()
    server = JudgeServer(taste(options.noise), port=options.port)
    print(f"a judge with a taste of its own: {server.url}", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
