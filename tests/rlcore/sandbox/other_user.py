"""Runs programs in a sandbox as the user that started this; a line of JSON in, one out."""

import json
import sys
from pathlib import Path

from rlcore.sandbox.probe import weakness
from rlcore.sandbox.sandbox import Sandbox
from rlcore.sandbox.types import Level, Limits, SandboxError


def main(directory: str) -> None:
    sandboxes = {level: Sandbox(level, Path(directory)) for level in Level}
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        sandbox = sandboxes[Level(asked["level"])]
        if asked["probe"]:
            try:
                said = {"weakness": weakness(sandbox)}
            except SandboxError as error:
                said = {"weakness": str(error)}
        else:
            limits = Limits(**asked["limits"])
            ran = sandbox.run(asked["program"], asked["stdin"], limits)
            said = {
                "status": ran.status,
                "exit_code": ran.exit_code,
                "signal": ran.signal,
                "stdout": ran.stdout.decode("latin-1"),
                "stderr": ran.stderr.decode("latin-1"),
            }
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
