"""Scores rows by the reward functions of a recipe, each in its own process."""

import math
from collections.abc import Sequence

from rlcore.rewards.process import RECYCLE_ROWS, FunctionProcess, environment_of
from rlcore.rewards.registry import check_functions, specs_of
from rlcore.rewards.types import Reward, RewardRow
from schemas.errors import UserError
from schemas.rl import RewardSection

# Of one row: what each function that scores it says, by the function's place in the recipe.
Parts = dict[int, Reward]


class RewardWorker:
    """A recipe's reward functions; not thread-safe.

    A function has no access to the others or to the sum: whatever it patches in its process, only
    its own scores can be wrong.
    """

    def __init__(self, section: RewardSection, recycle_rows: int = RECYCLE_ROWS) -> None:
        """Start the processes; ``recycle_rows``: rows after which one is replaced (leaks).

        Raises UserError when a reward function cannot be loaded (name, module, signature, options),
        or a variable of ``section.env`` is not set.
        """
        specs = specs_of(section)
        check_functions(specs)
        environment = environment_of(section.env)
        self._functions = section.functions
        self._processes: list[FunctionProcess] = []
        try:
            for index, (function, spec) in enumerate(zip(section.functions, specs, strict=True)):
                self._processes.append(
                    FunctionProcess(
                        function,
                        options=spec[2],
                        path=f"reward.functions[{index}]",
                        memory_gib=section.memory_gib,
                        environment=environment,
                        recycle_rows=recycle_rows,
                    )
                )
        except BaseException:
            self.close()
            raise

    def score(self, rows: Sequence[RewardRow], timeout_s: float, batch: bool) -> list[Parts]:
        """Return what the functions say of each row, in order: the batch functions (``rows`` holds
        whole prompts then), or all others.

        ``timeout_s``: wall clock of one call of one function, in seconds. Raises UserError for an
        invalid limit, RuntimeError when no process stays alive.
        """
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise UserError(f"reward timeout_s = {timeout_s} must be a positive number of seconds")
        parts: list[Parts] = [{} for _ in rows]
        for index, (function, process) in enumerate(
            zip(self._functions, self._processes, strict=True)
        ):
            if function.batch is not batch:
                continue
            own = [i for i, row in enumerate(rows) if function.scores(row.data_source, row.style)]
            rewards = process.score([rows[i] for i in own], timeout_s)
            for i, reward in zip(own, rewards, strict=True):
                parts[i][index] = reward
        return parts

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()
