"""Episodes of several turns: the policy acts, the environment answers, until one of them ends it.

An episode is one token stream: what was sampled stays as it was sampled, and what the environment
says is appended behind it. Turns go in lockstep: all episodes of an engine take their next turn as
one batch, in the order of their requests, so that a rerun gives the same bits on every engine.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rlcore.data.turns import TurnEncoder
from rlcore.engines.types import Generation, Sampling, TurnRequest
from rlcore.envs.types import Answer, Call, Message
from rlcore.seeds import stream_seed
from rlcore.trajectories.types import Request, Trajectory, Turn
from rlcore.weights.stamp import WeightStamp
from schemas.environment import EnvironmentSection
from schemas.outcomes import FinishReason, StopReason


class Engines(Protocol):
    """What samples turns; ``engines.pool.EnginePool`` is the one in use."""

    def __len__(self) -> int:
        """Return the number of engines."""
        ...

    def begin(self) -> None:
        """Note that a rollout begins."""
        ...

    def turn(
        self, shares: Sequence[Sequence[TurnRequest]], sampling: Sampling
    ) -> Iterator[tuple[str, Generation]]:
        """Yield (key, continuation) of each request; share i is engine i's."""
        ...

    def stamp(self) -> WeightStamp:
        """Return what the engines sample from."""
        ...


class Environments(Protocol):
    """What answers; ``envs.pool.EnvironmentPool`` is the one in use."""

    section: EnvironmentSection

    def answers(self, calls: Sequence[Call]) -> dict[str, Answer]:
        """Return the answer to each of ``calls``, by episode."""
        ...

    def end(self, episodes: Sequence[str]) -> None:
        """Forget ``episodes``."""
        ...


@dataclass(slots=True)
class _Episode:
    """An episode under way. ``token_ids``: all of it so far, the next turn opened."""

    request: Request
    token_ids: list[int]
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    text: str = ""
    is_over: bool = False

    @classmethod
    def of(cls, request: Request) -> "_Episode":
        return cls(request, [int(token) for token in request.prompt["prompt_ids"]])

    @property
    def name(self) -> str:
        return self.request.trajectory_id

    def turn_request(self, room: int, most: int) -> TurnRequest:
        number, seed = len(self.turns), self.request.seed
        if number:
            seed = stream_seed(seed, "turn", number)
        return TurnRequest(self.name, self.token_ids, seed, min(most, room - len(self.token_ids)))

    def take(self, generation: Generation, text: str) -> None:
        self.turns.append(Turn(generation))
        self.messages.append({"role": "assistant", "content": text})
        self.token_ids = [*self.token_ids, *generation.token_ids]
        self.text = text

    def trajectory(self, reason: StopReason, failure: str) -> Trajectory:
        return Trajectory(
            self.request, tuple(self.turns), self.text, reason, tuple(self.messages), failure
        )


@dataclass(frozen=True, slots=True)
class Episodes:
    """Plays episodes: ``engines`` sample the policy's turns, ``environments`` answer them.

    ``max_model_len``: tokens of an episode.
    """

    engines: Engines
    environments: Environments
    encoder: TurnEncoder
    max_model_len: int

    def play(
        self, requests: Sequence[Request], sampling: Sampling, tokenizer: Any
    ) -> Iterator[Trajectory]:
        """Yield the trajectory of each request as its episode ends, in no fixed order.

        ``sampling.max_new_tokens`` is of one turn. An episode whose environment failed has
        ``failure``, and is not scored. One that is full, or has had its ``max_turns``, ends with
        reason "length". Nothing is asked of an episode that has ended.
        """
        self.engines.begin()
        share = max(1, -(-len(requests) // len(self.engines)))
        starts = range(0, len(requests), share)
        shares = [[_Episode.of(r) for r in requests[start : start + share]] for start in starts]
        by_name = {episode.name: episode for part in shares for episode in part}
        yield from self._begun(by_name)
        for number in range(self.environments.section.turns):
            shares = [[e for e in part if not e.is_over] for part in shares]
            if not any(shares):
                return
            is_last = number + 1 == self.environments.section.turns
            yield from self._turn(by_name, shares, sampling, tokenizer, is_last=is_last)

    def _begun(self, by_name: dict[str, _Episode]) -> Iterator[Trajectory]:
        """Reset every episode's environment; yield what that already ends."""
        answers = self.environments.answers([_reset(e.request) for e in by_name.values()])
        for name, answer in answers.items():
            episode = by_name[name]
            if failure := answer.failure or _other_prompt(episode.request, answer):
                nothing = Generation([], [], FinishReason.ABORT, self.engines.stamp())
                episode.turns.append(Turn(nothing))
                yield self._ended(episode, StopReason.ABORT, failure)

    def _turn(
        self,
        by_name: dict[str, _Episode],
        shares: Sequence[Sequence[_Episode]],
        sampling: Sampling,
        tokenizer: Any,
        *,
        is_last: bool,
    ) -> Iterator[Trajectory]:
        """Let every episode of ``shares`` take its next turn; yield those that it ends."""
        asked = [
            [e.turn_request(self.max_model_len, sampling.max_new_tokens) for e in part]
            for part in shares
        ]
        calls = []
        for name, generation in self.engines.turn(asked, sampling):
            episode = by_name[name]
            (text,) = tokenizer.batch_decode([generation.token_ids], skip_special_tokens=True)
            episode.take(generation, text)
            if generation.finish_reason == FinishReason.ABORT:
                yield self._ended(episode, StopReason.ABORT)
            else:
                calls.append(Call(name, text))
        for name, answer in self.environments.answers(calls).items():
            reason = self._answered(by_name[name], answer, is_last=is_last)
            if reason is not None:
                yield self._ended(by_name[name], reason, answer.failure)

    def _answered(self, episode: _Episode, answer: Answer, *, is_last: bool) -> StopReason | None:
        """Add the environment's answer to ``episode``; return why that ends it, if it does."""
        if answer.failure:
            return StopReason.ABORT
        step, turn = answer.step, episode.turns[-1]
        assert step is not None, "a turn is answered by a step"
        episode.turns[-1] = replace(turn, reward=step.reward, valid=step.valid)
        episode.messages += step.messages
        if step.done:
            return StopReason.DONE
        if is_last:
            return StopReason.LENGTH
        was_cut = turn.generation.finish_reason == FinishReason.LENGTH
        observation = self.encoder.encode([dict(m) for m in step.messages], was_cut=was_cut)
        if len(episode.token_ids) + len(observation) >= self.max_model_len:
            return StopReason.LENGTH
        episode.turns[-1] = replace(episode.turns[-1], observation=observation)
        episode.token_ids = [*episode.token_ids, *observation]
        return None

    def _ended(self, episode: _Episode, reason: StopReason, failure: str = "") -> Trajectory:
        episode.is_over = True
        self.environments.end([episode.name])
        return episode.trajectory(reason, failure)


def _reset(request: Request) -> Call:
    row = request.prompt
    extra = row_values(row)
    seed = extra.get("seed")
    if not isinstance(seed, int):  # samples of one prompt begin alike
        seed = stream_seed(0, "environment", row["uid"])
    return Call(request.trajectory_id, row=extra, seed=seed)


def row_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an environment is given of a row of the Prompts table: the task's columns, and
    those of ``extra_info`` beside them."""
    return {
        **json.loads(row["extra_info"]),
        "data_source": row["data_source"],
        "prompt": [dict(message) for message in row["prompt"]],
        "ground_truth": row["ground_truth"],
    }


def _other_prompt(request: Request, answer: Answer) -> str:
    """Return what is wrong where the environment begins with other messages than the prompt."""
    assert answer.start is not None, "no failure"
    said = [dict(message) for message in answer.start.messages]
    prompt = [dict(message) for message in request.prompt["prompt"]]
    if not said or prompt[-len(said) :] == said:
        return ""
    return (
        f"reset() begins with {said[-1]['content'][:80]!r} and the prompt of the row is another;"
        " draw everything that is random from the seed of reset(), or take the prompts from a"
        " source of kind environment"
    )
