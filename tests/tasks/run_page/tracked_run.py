"""A process that logs RL steps to wandb as a run does: FOLDER FIRST LAST. It says so, and closes
once its input ends. Killed before, it leaves what a killed run leaves."""

import sys
from pathlib import Path

from schemas.recipe import Recipe
from tasks.run_page.tracking import Tracker

RUN = "run-0123"
METRIC = "actor/pg_loss"


def tracked_recipe(**tracking: object) -> Recipe:
    """Return a recipe that is never run."""
    return Recipe.model_validate(
        {
            "name": "tracked",
            "model": {"path": "some/model", "dtype": "float32"},
            "data": {"sources": [{"kind": "gsm8k"}]},
            "reward": {"functions": [{"name": "gsm8k"}]},
            "tracking": tracking,
        }
    )


def main(folder: str, first: str, last: str) -> None:
    """Log the steps from ``first`` to ``last``."""
    with Tracker.open(
        tracked_recipe(), Path(folder), run_id=RUN, name="tracked", warn=print
    ) as tracker:
        for step in range(int(first), int(last) + 1):
            tracker.log({METRIC: step / 10}, step=step, stage="rl")
        print("logged", flush=True)
        sys.stdin.read()
    print("closed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
