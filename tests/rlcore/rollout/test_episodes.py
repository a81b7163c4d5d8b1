"""Episodes as one token stream: what was sampled stays as it was sampled."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcore.cluster.in_process import InProcessWorker
from rlcore.engines.pool import EnginePool
from rlcore.engines.transformers_engine import TransformersEngine
from rlcore.engines.types import EngineSpec, Generation, Sampling, TurnRequest
from rlcore.envs.types import Answer, Call, Start, Step
from rlcore.models.chat import encode_prompts
from rlcore.models.tokenizer import EOS, train_tokenizer
from rlcore.models.weight_digest import WeightStamp
from rlcore.rl.rollout import episodes_frame, rollouts_frame
from rlcore.rollout.episodes import Episodes, collect, in_order
from rlcore.rollout.trajectories import Request, Trajectory, joined
from rlcore.rollout.turns import TurnEncoder
from schemas.environment import EnvironmentSection
from schemas.outcomes import FinishReason, StopReason
from schemas.tables import TABLES
from tests.rlcore.engines.conftest import Synced
from tests.rlcore.rollout.scripted import STAMP

CONTEXT = 200
SECTION = EnvironmentSection(name="calculator", max_turns=3, max_observation_tokens=16)
Say = Callable[[str, int], list[Any]]  # episode, turn -> ids


class LastFirst:
    """A stream that answers what was submitted last first, one at a time."""

    def __init__(self, answer: Callable[[list[Any]], Iterable[Any]]) -> None:
        self._answer = answer
        self._queue: list[Any] = []

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, asked: Iterable[Any]) -> None:
        self._queue += asked

    def finished(self, timeout_s: float) -> list[Any]:
        del timeout_s
        return list(self._answer([self._queue.pop()])) if self._queue else []


class Engines:
    """Two engines that say what a script says, the later share first."""

    def __init__(self, say: Say, finish: FinishReason | None = None) -> None:
        self._say, self._finish = say, finish
        self.asked: list[list[list[TurnRequest]]] = []

    def __len__(self) -> int:
        return 2

    def begin(self) -> None:
        """Nothing is kept between rollouts."""

    def turn(
        self, shares: Sequence[Sequence[TurnRequest]], sampling: Sampling
    ) -> Iterator[tuple[str, Generation]]:
        self.asked.append([list(share) for share in shares])
        for share in reversed(shares):
            for request in share:
                name, _, number = request.key.rpartition("/")
                ids = self._say(name, int(number))[: request.max_new_tokens]
                done = ids and ids[-1] == EOS_ID
                reason = self._finish or (FinishReason.STOP if done else FinishReason.LENGTH)
                yield request.key, Generation(ids, [-0.5] * len(ids), reason, STAMP)

    def streaming(self, sampling: Sampling) -> Any:
        return LastFirst(lambda asked: self.turn([asked], sampling))

    def stamp(self) -> WeightStamp:
        return STAMP


class Environments:
    """Answers by a function of the episode and the text; keeps what it was asked."""

    section = SECTION

    def __init__(self, step: Callable[[str, str], Step | str]) -> None:
        self._step = step
        self.calls: list[Call] = []
        self.ended: list[str] = []

    def answers(self, calls: Sequence[Call]) -> dict[str, Answer]:
        self.calls += calls
        answers = {}
        for call in calls:
            if call.text is None:
                answers[call.episode] = Answer(call.episode, start=Start())
                continue
            said = self._step(call.episode, call.text)
            failed = isinstance(said, str)
            answers[call.episode] = (
                Answer(call.episode, failure=said) if failed else Answer(call.episode, step=said)
            )
        return answers

    def streaming(self) -> Any:
        return LastFirst(lambda calls: self.answers(calls).values())

    def end(self, episode: str) -> None:
        self.ended.append(episode)


TOKENIZER = train_tokenizer(["Tom has 12 eggs, 3456 pens and gets 30 ü. How many now?"] * 20, 330)
EOS_ID = TOKENIZER.convert_tokens_to_ids(EOS)


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def requests(count: int) -> list[Request]:
    chats = [[{"role": "user", "content": f"How many, {i}?"}] for i in range(count)]
    encoded = encode_prompts(TOKENIZER, chats)
    rows = [
        {
            "uid": f"u{i}",
            "prompt": chat,
            "prompt_ids": ids,
            "data_source": "test",
            "ground_truth": "CANARY",
            "extra_info": "{}",
            "reward_style": "rule",
        }
        for i, (chat, ids) in enumerate(zip(chats, encoded, strict=True))
    ]
    return [Request(f"e{i}", row, 0, seed=100 + i) for i, row in enumerate(rows)]


Played = Callable[..., list[Trajectory]]


def by(schedule: Any) -> Played:
    """Return how ``count`` episodes are played on ``schedule``, in the order of their requests."""

    def played(
        engines: Any,
        environments: Any,
        count: int = 1,
        context: int = CONTEXT,
        new: int = 40,
        stop: tuple[str, ...] = (),
    ) -> list[Trajectory]:
        encoder = TurnEncoder(TOKENIZER, [], SECTION.max_observation_tokens)
        episodes = Episodes(engines, environments, encoder, context)
        asked, sampling = requests(count), Sampling(max_new_tokens=new, stop=stop)
        sampled = collect(asked, sampling, engines, TOKENIZER, episodes, schedule=schedule)
        return in_order(asked, sampled)

    return played


@pytest.fixture(params=["lockstep", "streaming"])
def played(request: pytest.FixtureRequest) -> Played:
    return by(request.param)


def tool(content: str, **fields: Any) -> Step:
    return Step([{"role": "tool", "content": content}], **fields)


def check_tables(trajectories: list[Trajectory]) -> None:
    TABLES["rollouts"].validate(rollouts_frame(trajectories, 1))
    TABLES["episodes"].validate(episodes_frame(trajectories))


# Ids that no encoder makes of their own text: one digit or byte per token, a tag cut in pieces, a
# character that is not whole.
ODD = {
    "digits": [i for c in "3456" for i in ids_of(c)],
    "bytes": [TOKENIZER.convert_tokens_to_ids(c) for c in "Tom"],
    "half a character": ids_of("ü")[:1] if len(ids_of("ü")) > 1 else [ids_of("ü")[0]],
    "a cut tag": ids_of("<tool") + ids_of("_ca"),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("is_cut", [False, True])
def test_sampled_ids_are_never_encoded_again(played: Played, odd: list[int], is_cut: bool) -> None:
    turn = odd if is_cut else [*odd, EOS_ID]
    last = [*ids_of("#### 5"), EOS_ID]
    engines = Engines(lambda name, number: [turn, turn, last][number])
    environments = Environments(lambda name, text: Step(done=True) if "#" in text else tool("42"))
    (trajectory,) = played(engines, environments)
    prompt = list(trajectory.request.prompt["prompt_ids"])
    observation = TurnEncoder(TOKENIZER, [], 16).encode(
        [{"role": "tool", "content": "42"}], after=turn
    )
    whole = [*prompt, *turn, *observation, *turn, *observation, *last]
    assert joined([trajectory]).token_ids.tolist() == whole
    mask = [0] * len(prompt) + 2 * ([1] * len(turn) + [0] * len(observation)) + [1] * len(last)
    assert joined([trajectory]).loss_mask.astype(int).tolist() == mask
    ends = [len(prompt) + len(turn), len(prompt) + 2 * len(turn) + len(observation), len(whole)]
    assert joined([trajectory]).turn_ends.tolist() == ends
    assert [list(r.token_ids) for share in engines.asked[1] for r in share] == [
        [*prompt, *turn, *observation]
    ]
    assert trajectory.stop_reason == StopReason.DONE
    check_tables([trajectory])


def test_an_environment_reads_the_stop_string_that_ended_a_turn(played: Played) -> None:
    """A call without its closing tag was malformed; rewards read the answer without it."""
    call = '<tool_call>{"name": "a"}</tool_call>'
    engines = Engines(lambda name, number: ids_of(call), finish=FinishReason.STOP)
    environments = Environments(lambda name, text: tool("42"))
    (trajectory,) = played(engines, environments, stop=("</tool_call>",))
    assert [c.text for c in environments.calls if c.text is not None] == [call] * SECTION.turns
    assert trajectory.reward_row().response == call.removesuffix("</tool_call>")


def test_finished_episodes_cause_no_call(played: Played) -> None:
    """Five episodes over two engines; episode i has i % 3 + 1 turns."""
    engines = Engines(lambda name, number: [*ids_of(f"{name} {number}"), EOS_ID])

    def step(name: str, text: str) -> Step:
        return Step(done=True) if int(text[-1]) == int(name[1]) % 3 else tool("go on")

    environments = Environments(step)
    trajectories = played(engines, environments, count=5)
    assert [len(t.turns) for t in trajectories] == [1, 2, 3, 1, 2]
    asked = [[[r.key for r in share] for share in turn] for turn in engines.asked]
    turns = [f"e{i}/{turn}" for i in range(5) for turn in range(i % 3 + 1)]
    assert sorted(key for turn in asked for share in turn for key in share) == turns
    assert sorted(environments.ended) == [f"e{i}" for i in range(5)]
    steps = [call.episode for call in environments.calls if call.text is not None]
    assert sorted(steps) == [turn[:2] for turn in turns]
    check_tables(trajectories)


def test_in_lockstep_engines_take_contiguous_shares_in_a_fixed_order() -> None:
    engines = Engines(lambda name, number: [*ids_of("a"), EOS_ID])
    ends = {"e0": 0, "e1": 1, "e2": 2, "e3": 0, "e4": 1}
    taken = dict.fromkeys(ends, -1)

    def step(name: str, text: str) -> Step:
        taken[name] += 1
        return Step(done=True) if taken[name] == ends[name] else tool("go on")

    by("lockstep")(engines, Environments(step), count=5)
    asked = [[[r.key[:2] for r in share] for share in turn] for turn in engines.asked]
    assert asked == [[["e0", "e1", "e2"], ["e3", "e4"]], [["e1", "e2"], ["e4"]], [["e2"], []]]


def test_every_turn_has_a_seed_of_its_own_and_the_first_is_todays(played: Played) -> None:
    engines = Engines(lambda name, number: [*ids_of("a"), EOS_ID])
    played(engines, Environments(lambda name, text: tool("b")), count=2)
    seeds = {r.key: r.seed for turn in engines.asked for share in turn for r in share}
    assert (seeds["e0/0"], seeds["e1/0"]) == (100, 101)
    assert len(set(seeds.values())) == len(seeds) == 6


def test_rewards_and_validity_stand_at_their_turn(played: Played) -> None:
    engines = Engines(lambda name, number: [*ids_of("a"), EOS_ID])
    steps = iter([tool("x", reward=0.25, valid=False), tool("y", reward=0.5), Step(reward=1.0)])
    (trajectory,) = played(engines, Environments(lambda name, text: next(steps)))
    assert [turn.reward for turn in trajectory.turns] == [0.25, 0.5, 1.0]
    assert [turn.valid for turn in trajectory.turns] == [False, True, True]
    assert trajectory.stop_reason == StopReason.LENGTH, "it had its turns, and was not done"
    row = trajectory.reward_row()
    assert [m["role"] for m in row.turns] == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert list(row.turn_rewards) == [0.25, 0.5, 1.0]


def test_a_full_context_ends_the_episode(played: Played) -> None:
    engines = Engines(lambda name, number: [*ids_of("a b c d e f"), EOS_ID])
    prompt = len(requests(1)[0].prompt["prompt_ids"])
    (trajectory,) = played(
        engines, Environments(lambda name, text: tool("1234567890")), context=prompt + 20
    )
    assert (len(trajectory.turns), trajectory.stop_reason) == (1, StopReason.LENGTH)
    assert len(joined([trajectory]).token_ids) <= prompt + 20
    check_tables([trajectory])


def test_the_budget_of_a_turn_is_what_the_context_leaves(played: Played) -> None:
    engines = Engines(lambda name, number: ids_of("a " * 60))
    prompt = len(requests(1)[0].prompt["prompt_ids"])
    (trajectory,) = played(
        engines, Environments(lambda name, text: tool("1")), context=prompt + 45, new=30
    )
    budgets = [r.max_new_tokens for turn in engines.asked for share in turn for r in share]
    assert budgets[0] == 30
    assert budgets[1] < 15
    assert len(joined([trajectory]).token_ids) == prompt + 45


@pytest.mark.parametrize("where", ["step", "reset"])
def test_an_environment_that_fails_leaves_its_row_unscored_and_the_others_alone(
    played: Played, where: str
) -> None:
    engines = Engines(lambda name, number: [*ids_of("a"), EOS_ID])

    class Failing(Environments):
        def answers(self, calls: Sequence[Call]) -> dict[str, Answer]:
            said = super().answers(calls)
            for call in calls:
                if call.episode == "e1" and (call.text is None) == (where == "reset"):
                    said["e1"] = Answer("e1", failure="its process died")
            return said

    failed, other = reversed(played(engines, Failing(lambda n, t: Step(done=True)), count=2))
    assert (failed.stop_reason, failed.failure) == (StopReason.ABORT, "its process died")
    assert other.stop_reason == StopReason.DONE
    check_tables([failed, other])


def test_what_the_engine_aborts_is_not_shown_to_the_environment(played: Played) -> None:
    engines = Engines(lambda name, number: ids_of("a"), finish=FinishReason.ABORT)
    environments = Environments(lambda name, text: Step(done=True))
    (trajectory,) = played(engines, environments)
    assert trajectory.stop_reason == StopReason.ABORT
    assert [call.text for call in environments.calls] == [None]


def test_an_environment_that_begins_otherwise_than_its_prompt_is_found(played: Played) -> None:
    class Other(Environments):
        def answers(self, calls: Sequence[Call]) -> dict[str, Answer]:
            start = Start([{"role": "user", "content": "Another question"}])
            return {call.episode: Answer(call.episode, start=start) for call in calls}

    (trajectory,) = played(Engines(lambda n, t: []), Other(lambda n, t: Step()))
    assert "the prompt of the row is another" in trajectory.failure


@pytest.mark.timeout(120)
def test_log_probs_of_turns_are_those_of_the_whole_sequence(played: Played, tmp_path: Path) -> None:
    """Engine (incremental) against one forward pass over the whole episode, float32."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.15,
    )
    model = Qwen2ForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "model")
    spec = EngineSpec(model_dir=str(tmp_path / "model"), max_model_len=CONTEXT)
    engines = [TransformersEngine(spec) for _ in range(2)]
    for engine in engines:
        engine.load_weights(Synced(engine, spec, True, tmp_path).publish(model))
    workers = [InProcessWorker.of(f"engine-{i}", engine) for i, engine in enumerate(engines)]
    pool = EnginePool(workers, timeout_s=60, sync_timeout_s=60)
    trajectories = played(pool, Environments(lambda n, t: tool(t[:3])), count=5, new=12)
    assert max(len(t.turns) for t in trajectories) == 3
    for trajectory in trajectories:
        (whole,) = engines[0].probe([joined([trajectory]).token_ids.tolist()])
        mask = joined([trajectory]).loss_mask
        gap = np.abs(joined([trajectory]).logprobs[mask] - np.array([0.0, *whole])[mask])
        assert gap.max() < 1e-4
    one, other = (
        by("lockstep")(pool, Environments(lambda n, t: tool(t[:3])), count=5, new=12)
        for _ in range(2)
    )
    for trajectory, again in zip(one, other, strict=True):
        assert np.array_equal(joined([trajectory]).token_ids, joined([again]).token_ids)
        assert np.array_equal(joined([trajectory]).logprobs, joined([again]).logprobs)
