"""What TRL's sides report: a JSON line per iteration on stdout. Imported by the scripts beside it,
in TRL's environment."""

import json
from time import perf_counter

from transformers import TrainerCallback


class Clock(TrainerCallback):
    """Reports each iteration of ``every`` optimizer steps but the first, which starts the clock;
    ``facts(n)``: what else to say of iteration n, from 0."""

    def __init__(self, facts, every=1):
        self.facts, self.every, self.began, self.iteration = facts, every, None, 0

    def on_step_end(self, args, state, control, **_):
        if state.global_step % self.every:
            return
        now = perf_counter()
        if self.began is not None:
            said = {"seconds": now - self.began, **self.facts(self.iteration)}
            print("STEP " + json.dumps(said), flush=True)
        self.began = now
        self.iteration += 1
