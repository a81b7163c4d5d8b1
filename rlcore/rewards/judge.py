"""A judge as a term of the reward: it is asked from the worker, so no child needs its key."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from rlcore.rewards.judges.cache import JudgeCache
from rlcore.rewards.judges.client import JudgeClient, Locks, NoAnswer, pulse
from rlcore.rewards.judges.question import JudgeQuestion, NoVerdict, question_of, verdict_of
from rlcore.rewards.judges.setup import JudgeSetup, key_of
from rlcore.rewards.types import Kind, Reward, RewardRow
from schemas.errors import UserError
from schemas.outcomes import Outcome


class JudgeFunction:
    """Scores rows by the verdicts of one judge; not thread-safe.

    A row without a verdict (no answer after all retries, or an answer without one) has outcome
    "error" and no score. Its answers are kept in the cache of the setup and asked for once.
    """

    def __init__(self, name: str, judge: str, setup: JudgeSetup) -> None:
        """``name``: of the term in parts and metrics. Raises UserError when the judge's key is not
        in this process's environment."""
        self.name = name
        self._judge_name, self._judge, self._run = judge, setup.judges[judge], setup.run
        self._key = key_of(f"judges.{judge}", self._judge.key_env)
        self._cache = JudgeCache(setup.cache)
        self._locks = Locks(setup.folder / f"{judge}.lock")

    @property
    def kind(self) -> Kind:
        """How the judge is given rows."""
        return "awaited"

    def score(self, rows: Sequence[RewardRow], timeout_s: float) -> list[Reward]:
        """Return the judge's reward for each row, in order; its own limits apply, not
        ``timeout_s``.

        Raises CallsSpent when the run may ask no more.
        """
        del timeout_s
        return asyncio.run(self._score(rows))

    def close(self) -> None:
        """Close the cache."""
        self._cache.close()
        self._locks.close()

    async def _score(self, rows: Sequence[RewardRow]) -> list[Reward]:
        # Equal responses to equal prompts are one question.
        asked: dict[str, tuple[JudgeQuestion, list[int]]] = {}
        rewards: dict[int, Reward] = {}
        for index, row in enumerate(rows):
            try:
                question = self._question(row)
            except UserError as error:
                rewards[index] = _lost(row, str(error))
                continue
            asked.setdefault(question.digest, (question, []))[1].append(index)
        known = self._cache.find(list(asked))
        client = JudgeClient(
            self._judge_name, self._judge, self._cache, self._locks, self._run, self._key
        )

        async def judge_rows(question: JudgeQuestion, indices: list[int]) -> None:
            began = time.perf_counter()
            answer: str | NoAnswer | None = known.get(question.digest)
            try:
                answer = await client.ask(question) if answer is None else answer
            except NoAnswer as error:
                answer = error
            except Exception as error:  # noqa: BLE001 - raised below, once nothing is under way
                failures.append(error)
                client.stop(tasks)
                return
            seconds = time.perf_counter() - began
            for index in indices:
                rewards[index] = self._reward(rows[index], question, answer, seconds)

        failures: list[Exception] = []
        async with client, pulse():
            tasks = [asyncio.create_task(judge_rows(*each)) for each in asked.values()]
            await asyncio.gather(*tasks, return_exceptions=True)
        if failures:
            raise failures[0]
        return [rewards[index] for index in range(len(rows))]

    def _question(self, row: RewardRow) -> JudgeQuestion:
        return question_of(
            self._judge,
            response=row.response,
            prompt=row.prompt,
            ground_truth=row.ground_truth,
            other=row.other,
        )

    def _reward(
        self, row: RewardRow, question: JudgeQuestion, answer: str | NoAnswer, seconds: float
    ) -> Reward:
        if isinstance(answer, NoAnswer):
            return _lost(row, str(answer), seconds=seconds)
        said: dict[str, Any] = {
            "question": question.digest,
            "answer": answer,
            "choice": None,
            "run": self._run,
        }
        try:
            said["choice"] = verdict_of(self._judge, question, answer)
        except NoVerdict as error:
            return _lost(row, str(error), seconds=seconds, verdicts={self.name: said})
        score, bound = self._judge.scores[said["choice"]], self._judge.correct_from
        correct = None if bound is None else score >= bound
        return Reward(
            row.trajectory_id,
            Outcome.WRONG if correct is False else Outcome.OK,
            score,
            correct=correct,
            seconds=seconds,
            verdicts={self.name: said},
        )


def _lost(row: RewardRow, detail: str, **more: Any) -> Reward:
    return Reward(row.trajectory_id, Outcome.ERROR, None, detail=detail, **more)
