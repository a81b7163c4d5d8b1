"""One reward worker: scores rows by all functions of a recipe, each in its own process, and by its
judges."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlcore.rewards.judges.setup import JudgeSetup
from rlcore.rewards.link import environment_of
from rlcore.rewards.process import FunctionProcess
from rlcore.rewards.registry import check_functions, specs_of
from rlcore.rewards.types import Kind, Reward, RewardRow
from schemas.names import JUDGE, term_name
from schemas.rl import RewardSection

if TYPE_CHECKING:
    from rlcore.rewards.judge import JudgeFunction

# Of one row: what each function that scores it says, by the name of its term.
Parts = dict[str, Reward]


class RewardWorker:
    """A recipe's reward functions; not thread-safe.

    A function has no access to the others or to the sum: whatever it patches in its process, only
    its own scores can be wrong.
    """

    def __init__(self, section: RewardSection, judges: JudgeSetup | None = None) -> None:
        """Start the processes; ``judges``: those that ``section`` names, which have no process.

        Raises UserError when a reward function cannot be loaded (name, module, signature, options),
        or a variable of ``section.env`` or the key of a judge is not set.
        """
        check_functions(specs_of(section))
        environment = environment_of(section.env)
        self._functions = section.functions
        self._scorers: list[FunctionProcess | JudgeFunction] = []
        try:
            for index, function in enumerate(section.functions):
                if function.name == JUDGE:
                    self._scorers.append(_judge(function.options["judge"], judges))
                else:
                    self._scorers.append(FunctionProcess(section, index, environment))
        except BaseException:
            self.close()
            raise

    def kinds(self) -> list[Kind]:
        """Return the kind of each function."""
        return [scorer.kind for scorer in self._scorers]

    def score(self, rows: Sequence[RewardRow], timeout_s: float, kind: Kind) -> list[Parts]:
        """Return what the functions of ``kind`` say of each row, in order; for "groups", ``rows``
        holds whole prompts.

        ``timeout_s``: wall clock of one call of one function, in seconds; a judge has its own
        limits. Raises RuntimeError when no process stays alive.
        """
        parts: list[Parts] = [{} for _ in rows]
        for function, scorer in zip(self._functions, self._scorers, strict=True):
            if scorer.kind != kind:
                continue
            own = [i for i, row in enumerate(rows) if function.scores(row.data_source, row.style)]
            rewards = scorer.score([rows[i] for i in own], timeout_s)
            for i, reward in zip(own, rewards, strict=True):
                parts[i][term_name(function.name, function.options)] = reward
        return parts

    def close(self) -> None:
        """End the processes."""
        for scorer in self._scorers:
            scorer.close()


def _judge(name: str, judges: JudgeSetup | None) -> "JudgeFunction":
    from rlcore.rewards.judge import JudgeFunction

    assert judges is not None, "the recipe holds the judges that it names"
    return JudgeFunction(name, judges)
