"""A policy and verifiers that say what a table says, by the seed that they are asked with."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlcore.algorithms.seeds import stream_seed
from rlcore.engines.types import Generation, Sampling
from rlcore.evolve.agents import Agents
from rlcore.evolve.prompts import AgentPrompts, Row
from rlcore.models.tokenizer import eos_token_id, train_tokenizer
from schemas.evolve import EvolveSection
from schemas.outcomes import FinishReason
from tests.rlcore.rollout.scripted import STAMP

TOKENIZER = train_tokenizer(["What is 12 and 3456? Tom has 30 eggs. How many now?"] * 20, 330)
EOS_ID = eos_token_id(TOKENIZER)
SEED = 7
CANARY = "CANARY-90210"
SHORT = {
    "rounds": 4,
    "verifiers": 3,
    "memory": 2,
    "format_retries": 2,
    "max_new_tokens": 60,
    "policy_prompt": "{{ problem }}{% for m in memory %} "
    "[{{ m.round }} {{ m.score }} {{ m.solution }} {{ m.report }}]{% endfor %}",
    "verifier_prompt": "Judge {{ problem }}: {{ solution }}",
}
Words = Mapping[tuple[Any, ...], str]  # (*names of the agent, uid, retry) -> what it says


def section(**fields: Any) -> EvolveSection:
    return EvolveSection.model_validate({**SHORT, **fields})


def problem(uid: str, text: str) -> Row:
    """A row as ``problems_of`` returns it."""
    return {
        "uid": uid,
        "prompt": [{"role": "user", "content": text}],
        "data_source": "test",
        "reward_style": "rule",
        "ground_truth": None,
        "extra_info": "{}",
    }


class Engines:
    """Answers by ``words``, else by ``other``; keeps each (prompt's text, sampling)."""

    def __init__(self, words: Words, other: str = "?") -> None:
        self._words = {stream_seed(SEED, "evolve", *names): text for names, text in words.items()}
        self._other = other
        self.asked: list[tuple[str, Sampling]] = []

    def stream(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> Iterator[tuple[int, Generation]]:
        for index, seed in reversed(list(enumerate(seeds))):
            self.asked.append((str(TOKENIZER.decode(list(prompts[index]))), sampling))
            text = self._words.get(seed, self._other)
            ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
            ids = [*ids, EOS_ID][: sampling.max_new_tokens]
            reason = FinishReason.STOP if ids[-1] == EOS_ID else FinishReason.LENGTH
            yield index, Generation(ids, [-0.5] * len(ids), reason, STAMP)


def agents(engines: Any, chosen: EvolveSection, max_tokens: int = 2000) -> Agents:
    return Agents(
        chosen, SEED, engines, TOKENIZER, (EOS_ID,), AgentPrompts(chosen, TOKENIZER, max_tokens)
    )
