"""A judge as a term of the reward: it is asked from the worker, so no child needs its key."""

from collections.abc import Sequence
from typing import Any, ClassVar

from rlcore.rewards.judges.client import JudgeClient, NoAnswer, access_to
from rlcore.rewards.judges.question import JudgeQuestion, NoVerdict, question_of, verdict_of
from rlcore.rewards.judges.setup import JudgeSetup
from rlcore.rewards.types import Kind, Reward, RewardRow
from schemas.errors import UserError
from schemas.names import JUDGE


class JudgeFunction:
    """Scores rows by the verdicts of one judge; not thread-safe.

    A row without a verdict (no answer after all retries, or an answer without one) has outcome
    "error" and no score. Its answers are kept in the cache of the setup and asked for once.
    """

    kind: ClassVar[Kind] = "awaited"  # how it is given rows

    def __init__(self, judge: str, setup: JudgeSetup) -> None:
        """Raises UserError when the judge's key is not in this process's environment."""
        self._judge_name, self._judge = judge, setup.judges[judge]
        self._access = access_to(setup, f"judges.{judge}", self._judge.key_env, lock=judge)

    def score(self, rows: Sequence[RewardRow], timeout_s: float) -> list[Reward]:
        """Return the judge's reward for each row, in order; its own limits apply, not
        ``timeout_s``.

        Raises CallsSpent when the run may ask no more.
        """
        del timeout_s
        questions: dict[int, JudgeQuestion] = {}
        rewards: dict[int, Reward] = {}
        for index, row in enumerate(rows):
            try:
                questions[index] = question_of(self._judge, row)
            except UserError as error:
                rewards[index] = Reward.lost(row, str(error))
        client = JudgeClient(self._judge_name, self._judge, self._access)
        found = client.ask_all(questions.values())
        for index, question in questions.items():
            rewards[index] = self._reward(rows[index], question, *found[question.digest])
        return [rewards[index] for index in range(len(rows))]

    def close(self) -> None:
        """Close the cache."""
        self._access.close()

    def _reward(
        self, row: RewardRow, question: JudgeQuestion, answer: str | NoAnswer, seconds: float
    ) -> Reward:
        if isinstance(answer, NoAnswer):
            return Reward.lost(row, str(answer), seconds=seconds)
        term = f"{JUDGE}/{self._judge_name}"
        said: dict[str, Any] = {
            "question": question.digest,
            "answer": answer,
            "choice": None,
            "run": self._access.run,
        }
        try:
            said["choice"] = verdict_of(self._judge, question, answer)
        except NoVerdict as error:
            return Reward.lost(row, str(error), seconds=seconds, verdicts={term: said})
        score, bound = self._judge.scores[said["choice"]], self._judge.correct_from
        correct = None if bound is None else score >= bound
        return Reward.of(row, score, correct, seconds=seconds, verdicts={term: said})
