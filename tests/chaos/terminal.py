"""What a user does in a terminal: bring everything up, start a run, follow it to its end.

python -m tests.chaos.terminal HOME RECIPE OVERRIDES_JSON
"""

import json
import sys
import time
from pathlib import Path

from flows import local
from schemas.errors import UserError


def main() -> int:
    """Return the exit code of the run."""
    home, recipe, overrides = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    try:
        site = local.up(home, env_file=home / ".env")
        return local.run(site, recipe, overrides, time.monotonic())
    except UserError as error:
        print(error, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
