"""What the records of an RL run add to a finding: the prompts concerned, and how to list them."""

import shlex
from dataclasses import dataclass

import polars as pl

from rlcore.rl.answers import LEAST_ANSWERS, RECENT, RecentAnswers
from rlcore.store.artifacts import ArtifactStore
from schemas.errors import UserError

NAMED = 3  # prompts
SHOWN_CHARACTERS = 80  # of each


@dataclass(frozen=True, slots=True)
class Evidence:
    """The RL run ``key`` of ``store``."""

    store: ArtifactStore
    key: str

    def never_right(self, iteration: int) -> str:
        """Return the end of a sentence: some of the prompts that were wrong in every sample of the
        iterations up to ``iteration``, and the command that shows all of them.

        If the store cannot be read, return the reason instead: that must not end a run.
        """
        see = f"to see them: `{command(self.store, never_right_query(self.key, iteration))}`"
        try:
            names = self._names(iteration)
        except UserError as error:
            return f" (their names cannot be read: {error}; {see})"
        return f", such as {' and '.join(names)} ({see})"

    def _names(self, iteration: int) -> list[str]:
        answered = RecentAnswers(self.store, self.key).answered(iteration)
        wrong = answered.filter(pl.col("right") == 0).head(NAMED)
        prompts = wrong.join(self._prompts(iteration), on="uid", maintain_order="left")
        return [_quoted(messages[-1]["content"]) for messages in prompts["prompt"]]

    def _prompts(self, iteration: int) -> pl.DataFrame:
        rollouts = self.store.find("rollouts", f"{self.key}/{iteration:06d}")
        parents = {} if rollouts is None else self.store.manifest(rollouts).parents
        if "dataset" not in parents:
            raise UserError(f"the store has no rollouts of iteration {iteration} with prompts")
        return self.store.table(parents["dataset"], "prompts")


def never_right_query(key: str, iteration: int) -> str:
    """Return the SELECT over the store's views (``results.queries``) of every prompt of the run
    ``key`` that was wrong in all its samples, with the answers given.

    It counts as ``RecentAnswers.answered`` does, and contains no character that a shell expands
    between double quotes.
    """
    first = iteration - RECENT + 1
    return (
        "select t.uid, p.prompt[-1].content as prompt, p.ground_truth,"
        " mode(t.response) as response, count(t.correct) as samples"
        " from trajectories t join (select distinct on (uid) * from prompts) p on p.uid = t.uid"
        f" where t.key like '{key}/%' and t.iteration between {first} and {iteration} group by all"
        f" having count(t.correct) >= {LEAST_ANSWERS} and not bool_or(t.correct)"
        " order by samples desc, t.uid"
    )


def command(store: ArtifactStore, sql: str) -> str:
    """Return the command line that runs ``sql`` on ``store``, from any folder."""
    return f'rl-pipeline sql --store {shlex.quote(store.root)} "{sql}"'


def _quoted(text: str) -> str:
    """Return a prompt as one line of at most ``SHOWN_CHARACTERS``, without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    short = line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 3] + "..."
    return f"'{short}'"
