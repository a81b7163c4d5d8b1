"""Scores rows by the reward functions of a recipe, each in its own process."""

import math
from collections.abc import Sequence
from dataclasses import replace

from rlcore.rewards.process import RECYCLE_ROWS, FunctionProcess, environment_of
from rlcore.rewards.registry import check_functions, combine
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rewards.unscored import check_unscored
from schemas.errors import UserError
from schemas.names import portable_name
from schemas.rl import RewardSection


class RewardWorker:
    """The weighted sum of a recipe's reward functions; not thread-safe.

    A function has no access to the others or to the sum: whatever it patches in its process, only
    its own scores can be wrong.
    """

    def __init__(self, section: RewardSection, recycle_rows: int = RECYCLE_ROWS) -> None:
        """Start the processes; ``recycle_rows``: rows after which one is replaced (leaks).

        Raises UserError when a reward function cannot be loaded (name, module, signature, options),
        or a variable of ``section.env`` is not set.
        """
        specs = [(f.name, f.weight, f.options) for f in section.functions]
        check_functions(specs)
        environment = environment_of(section.env)
        self._section = section
        self._weights = [function.weight for function in section.functions]
        self._processes: list[FunctionProcess] = []
        try:
            for index, spec in enumerate(specs):
                self._processes.append(
                    FunctionProcess(
                        spec,
                        path=f"reward.functions[{index}]",
                        memory_gib=section.memory_gib,
                        environment=environment,
                        recycle_rows=recycle_rows,
                    )
                )
        except BaseException:
            self.close()
            raise

    def score(
        self, rows: Sequence[RewardRow], timeout_s: float, of: int | None = None
    ) -> list[Reward]:
        """Return one reward per row, in order.

        ``timeout_s``: wall clock of one function on one row, in seconds. ``of``: how many rows are
        scored in all, here and by other workers; None: no check here. Raises UserError for an
        invalid limit, RewardFailureError as soon as more of these rows are unscored than the recipe
        allows of all rows, RuntimeError when no process stays alive.
        """
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise UserError(f"reward timeout_s = {timeout_s} must be a positive number of seconds")
        names = [portable_name(process.name) for process in self._processes]

        def check(rewards: Sequence[Reward]) -> None:
            if of is not None:
                outcomes = [(reward.outcome, reward.detail) for reward in rewards]
                check_unscored(outcomes, self._section, of=of)

        by_function = [
            process.score(rows, timeout_s, check if weight else None)
            for process, weight in zip(self._processes, self._weights, strict=True)
        ]
        return [
            replace(
                combine(row, list(zip(names, self._weights, said, strict=True))),
                seconds=sum(one.seconds for one in said),
            )
            for row, said in zip(rows, zip(*by_function, strict=True), strict=True)
        ]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()
