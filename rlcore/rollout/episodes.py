"""The one path that samples. In an episode of several turns the policy acts and the environment
answers, until one of them ends it; callers score, record or rank what comes of it.

An episode is one token stream: what was sampled stays as it was sampled, and what the environment
says is appended behind it. Two schedules: in lockstep all episodes of an engine take their next
turn as one batch, in the order of their requests, so that a rerun gives the same bits on every
engine; streaming, each continues as soon as its environment has answered.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlcore.algorithms.seeds import stream_seed
from rlcore.engines.pool import EnginePool
from rlcore.engines.stop_strings import answer_text
from rlcore.engines.types import Generation, Sampling, TurnRequest
from rlcore.envs.pool import EnvironmentPool
from rlcore.envs.types import Answer, Call, Message
from rlcore.rewards.types import Reward, RewardRow, score_finished
from rlcore.rollout.trajectories import Request, Trajectory, Turn
from rlcore.rollout.turns import TurnEncoder
from schemas.outcomes import FinishReason, StopReason
from schemas.recipe import Recipe

POLL_S = 0.002  # wait for the engines before the environments are looked at


@dataclass(slots=True)
class _Episode:
    """An episode under way. ``token_ids``: all of it so far, the next turn opened. ``text``: of the
    last turn, as rewards read it; ``whole``: with the stop string that ended it."""

    request: Request
    token_ids: list[int]
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    text: str = ""
    whole: str = ""
    is_over: bool = False

    @classmethod
    def of(cls, request: Request) -> "_Episode":
        return cls(request, [int(token) for token in request.prompt["prompt_ids"]])

    @property
    def name(self) -> str:
        return self.request.trajectory_id

    def take(self, generation: Generation, text: str, whole: str) -> None:
        self.turns.append(Turn(generation))
        self.messages.append({"role": "assistant", "content": text})
        self.token_ids = [*self.token_ids, *generation.token_ids]
        self.text, self.whole = text, whole


@dataclass(frozen=True, slots=True)
class Episodes:
    """Plays episodes: ``engines`` sample the policy's turns, ``environments`` answer them.

    ``max_model_len``: tokens of an episode.
    """

    engines: EnginePool
    environments: EnvironmentPool
    encoder: TurnEncoder
    max_model_len: int

    def play(
        self, requests: Sequence[Request], sampling: Sampling, tokenizer: Any
    ) -> Iterator[Trajectory]:
        """Yield the trajectory of each request as its episode ends, in no fixed order: lockstep.

        ``sampling.max_new_tokens`` is of one turn. An episode whose environment failed has
        ``failure``, and is not scored. One that is full, or has had its ``max_turns``, ends with
        reason "length". Nothing is asked of an episode that has ended.
        """
        self.engines.begin()
        share = max(1, -(-len(requests) // len(self.engines)))
        starts = range(0, len(requests), share)
        shares = [[_Episode.of(r) for r in requests[start : start + share]] for start in starts]
        by_name = {episode.name: episode for part in shares for episode in part}
        answers = self.environments.answers([_reset(e.request) for e in by_name.values()])
        yield from self._ended_by(answers.values(), by_name)
        for _ in range(self.environments.section.turns):
            shares = [[e for e in part if not e.is_over] for part in shares]
            if not any(shares):
                return
            asked = [[self._request(e, sampling) for e in part] for part in shares]
            sampled = self.engines.turn(asked, sampling)
            yield from self._ended_while(sampled, by_name, tokenizer, sampling)
            calls = [Call(e.name, e.whole) for part in shares for e in part if not e.is_over]
            answers = self.environments.answers(calls)
            yield from self._ended_by(answers.values(), by_name)

    def stream(
        self, requests: Sequence[Request], sampling: Sampling, tokenizer: Any
    ) -> Iterator[Trajectory]:
        """Yield what ``play`` does, where no episode waits for another: streaming."""
        by_name = {request.trajectory_id: _Episode.of(request) for request in requests}
        turns, answers = self.engines.streaming(sampling), self.environments.streaming()
        answers.submit([_reset(request) for request in requests])
        while len(turns) or len(answers):
            answered = answers.finished(0.0 if len(turns) else POLL_S)
            yield from self._ended_by(answered, by_name)
            going = [by_name[answer.episode] for answer in answered]
            turns.submit(self._request(e, sampling) for e in going if not e.is_over)
            sampled = turns.finished(POLL_S)
            yield from self._ended_while(sampled, by_name, tokenizer, sampling)
            going = [by_name[_name(key)] for key, _ in sampled]
            answers.submit([Call(e.name, e.whole) for e in going if not e.is_over])

    def _request(self, episode: _Episode, sampling: Sampling) -> TurnRequest:
        number, seed = len(episode.turns), episode.request.seed
        if number:
            seed = stream_seed(seed, "turn", number)
        budget = min(sampling.max_new_tokens, self.max_model_len - len(episode.token_ids))
        return TurnRequest(f"{episode.name}/{number}", episode.token_ids, seed, budget)

    def _ended_while(
        self,
        sampled: Iterable[tuple[str, Generation]],
        by_name: Mapping[str, _Episode],
        tokenizer: Any,
        sampling: Sampling,
    ) -> Iterator[Trajectory]:
        """Add the policy's turns to their episodes; yield those that the engine aborted."""
        unstopped = replace(sampling, stop=())  # </tool_call> may be one, which ends the call
        for key, generation in sampled:
            episode = by_name[_name(key)]
            read = (answer_text(tokenizer, generation, each) for each in (sampling, unstopped))
            episode.take(generation, *read)
            if generation.finish_reason == FinishReason.ABORT:
                yield self._ended(episode, StopReason.ABORT)

    def _ended_by(
        self, answers: Iterable[Answer], by_name: Mapping[str, _Episode]
    ) -> Iterator[Trajectory]:
        """Add what environments answer to their episodes; yield those that it ends."""
        for answer in answers:
            episode = by_name[answer.episode]
            if episode.turns:
                reason, failure = self._answered(episode, answer), answer.failure
            else:
                failure = self._begun(episode, answer)
                reason = StopReason.ABORT if failure else None
            if reason is not None:
                yield self._ended(episode, reason, failure)

    def _begun(self, episode: _Episode, answer: Answer) -> str:
        """Return why ``episode`` cannot begin, if so, and give it a turn without tokens then."""
        failure = answer.failure or _other_prompt(episode.request, answer)
        if failure:
            nothing = Generation([], [], FinishReason.ABORT, self.engines.stamp())
            episode.turns.append(Turn(nothing))
        return failure

    def _answered(self, episode: _Episode, answer: Answer) -> StopReason | None:
        """Add the environment's answer to ``episode``; return why that ends it, if it does."""
        if answer.failure:
            return StopReason.ABORT
        step, turn = answer.step, episode.turns[-1]
        assert step is not None, "a turn is answered by a step"
        episode.turns[-1] = replace(turn, reward=step.reward, valid=step.valid)
        episode.messages += step.messages
        if step.done:
            return StopReason.DONE
        if len(episode.turns) == self.environments.section.turns:
            return StopReason.LENGTH
        messages = [dict(m) for m in step.messages]
        observation = self.encoder.encode(messages, after=turn.generation.token_ids)
        if len(episode.token_ids) + len(observation) >= self.max_model_len:
            return StopReason.LENGTH
        episode.turns[-1] = replace(episode.turns[-1], observation=observation)
        episode.token_ids = [*episode.token_ids, *observation]
        return None

    def _ended(self, episode: _Episode, reason: StopReason, failure: str = "") -> Trajectory:
        episode.is_over = True
        self.environments.end(episode.name)
        turns, messages = tuple(episode.turns), tuple(episode.messages)
        return Trajectory(episode.request, turns, episode.text, reason, messages, failure)


def episodes_of(
    recipe: Recipe, engines: EnginePool, environments: EnvironmentPool | None, tokenizer: Any
) -> Episodes | None:
    """Return how episodes of ``recipe`` are played; None where an episode is one turn.

    Raises UserError where the chat template cannot carry an episode.
    """
    if environments is None:
        return None
    longest = environments.section.max_observation_tokens
    encoder = TurnEncoder(tokenizer, environments.tools, longest)
    encoder.check()
    return Episodes(engines, environments, encoder, recipe.model.max_tokens)


def _name(key: str) -> str:
    """Return the episode of a request's key."""
    return key.rpartition("/")[0]


def _reset(request: Request) -> Call:
    """Return the first call: the columns of the prompt's row that say what the task is, and those
    of ``extra_info`` beside them."""
    row = request.prompt
    values = {
        **json.loads(row["extra_info"]),
        "data_source": row["data_source"],
        "prompt": [dict(message) for message in row["prompt"]],
        "ground_truth": row["ground_truth"],
    }
    seed = values.get("seed")
    if not isinstance(seed, int):  # samples of one prompt begin alike
        seed = stream_seed(0, "environment", row["uid"])
    return Call(request.trajectory_id, row=values, seed=seed)


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


def collect(
    requests: Sequence[Request],
    sampling: Sampling,
    engines: EnginePool,
    tokenizer: Any,
    episodes: Episodes | None = None,
    *,
    schedule: Literal["lockstep", "streaming"] = "lockstep",
) -> Iterator[Trajectory]:
    """Sample every request; yield its trajectory as it completes, in no fixed order. With
    ``episodes`` a trajectory has several turns, which an environment answers, by its own engines.
    ``schedule``: see ``rl.rollout.schedule``.

    Whatever depends on the order, or on which rows share a batch, takes ``in_order``: no bit may
    depend on which engine was faster.
    """
    is_streamed = schedule == "streaming"
    if episodes is not None:
        play = episodes.stream if is_streamed else episodes.play
        yield from play(requests, sampling, tokenizer)
        return
    prompts = [request.prompt["prompt_ids"] for request in requests]
    seeds = [request.seed for request in requests]
    sample = engines.pulled if is_streamed else engines.stream
    for index, generation in sample(prompts, seeds, sampling):
        text = answer_text(tokenizer, generation, sampling)
        reason = StopReason.of_single_turn(generation.finish_reason)
        yield Trajectory(requests[index], (Turn(generation),), text, reason)


def in_order(requests: Sequence[Request], trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Return the trajectories in the order of their ``requests``, once all are there."""
    done = {trajectory.request.trajectory_id: trajectory for trajectory in trajectories}
    return [done[request.trajectory_id] for request in requests]


def score(
    trajectories: Sequence[Trajectory], scorer: Callable[[list[RewardRow]], list[Reward]]
) -> list[Reward]:
    """Return one reward per trajectory, in order; what the engine aborted has no score."""
    return score_finished([trajectory.reward_row() for trajectory in trajectories], scorer)
