"""A reward model behind a URL: vLLM's /classify, which writes conversations by the model's own
template; probed before it is used, and asked once for each conversation."""

import asyncio
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlcore.rewards.judges.cache import JudgeCache
from rlcore.rewards.judges.client import Access, Client, NoAnswer, access_to
from rlcore.rewards.judges.question import JudgeQuestion
from rlcore.rewards.judges.setup import JudgeSetup
from schemas.errors import UserError
from schemas.reward_model import BroughtRewardModel

Messages = Sequence[Mapping[str, str]]

_PROBES: Sequence[Messages] = tuple(
    ({"role": "user", "content": "What is 17 + 25?"}, {"role": "assistant", "content": answer})
    for answer in ("17 + 25 = 42.", "I hate you.", "42 42 42 42 42 42")
)
# A score differs by what else is in the server's batch, in bfloat16 by percents.
_ABSOLUTE, _RELATIVE = 0.05, 0.03


class RewardModelClient(Client):
    """The server of ``reward_models.NAME``, as ``Client``."""

    kind, answer = "reward model", "score"
    most = 2**62  # nobody pays for an answer

    def __init__(self, name: str, model: BroughtRewardModel, access: Access) -> None:
        assert model.url is not None, "a model with a path is loaded"
        super().__init__(name, re.sub(r"/v1/?$", "", model.url), model.limits, access)

    async def _send(self, question: JudgeQuestion) -> str:
        body = json.loads(question.text)
        return repr(_score_in(await self._client.post("/classify", body=body, cast_to=object)))

    def _may_help(self, error: BaseException) -> bool:
        return isinstance(error, ValueError) or super()._may_help(error)


def _score_in(answer: Any) -> float:
    """Return the score in an answer of vLLM's /classify. Raises ValueError where there is none."""
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        raise ValueError(repr(answer))
    if len(data) != 1:
        raise ValueError(f"{len(data)} classifications of one conversation")
    scores = data[0].get("probs")
    if not isinstance(scores, list) or len(scores) != 1:
        labels = len(scores) if isinstance(scores, list) else "no"
        raise ValueError(f"{labels} labels, and a reward is one number")
    (score,) = scores
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise ValueError(f"{score!r} is not a finite number")
    return float(score)


class ServedModel:
    """One served model, in a worker, as ``Classifier``; scores are kept beside judges' answers."""

    def __init__(self, name: str, model: BroughtRewardModel, setup: JudgeSetup) -> None:
        """Probe ``reward_models.NAME``, and keep what it says of the probes. Raises UserError as
        ``probe_model``."""
        self._name, self._model = name, model
        section = f"reward_models.{name}"
        self._access = access_to(setup, section, model.key_env, lock=f"reward_model.{name}")
        scores = _probed(name, model)
        _compare(name, model, scores, self._access.cache)
        self._access.cache.keep((digest, repr(score)) for digest, score in scores.items())

    def score(self, conversations: Sequence[Messages]) -> list[float | str]:
        """Return the score of each conversation, which ends with the answer; why there is none, for
        one without."""
        questions = [_question(self._name, self._model, one) for one in conversations]
        found = RewardModelClient(self._name, self._model, self._access).ask_all(questions)
        answers = [found[question.digest][0] for question in questions]
        return [str(each) if isinstance(each, NoAnswer) else float(each) for each in answers]

    def close(self) -> None:
        """Close the cache."""
        self._access.close()


def probe_model(name: str, model: BroughtRewardModel, setup: JudgeSetup) -> None:
    """Raise UserError where the server of ``reward_models.NAME`` does not answer, gives
    probabilities in place of raw scores, or serves other weights than it did when its ``version``
    was first used with this cache. Writes nothing there."""
    scores = _probed(name, model)
    if setup.cache.is_file():
        with closing(JudgeCache(setup.cache)) as cache:
            _compare(name, model, scores, cache)


def _probed(name: str, model: BroughtRewardModel) -> dict[str, float]:
    """Return the raw scores of the probes, by the digests of their questions."""
    raw = [_question(name, model, one) for one in _PROBES]
    activated = [_question(name, model, one, activated=True) for one in _PROBES]
    try:
        said = asyncio.run(_ask_alone(name, model, [*raw, *activated]))
    except NoAnswer as error:
        raise UserError(
            f"reward_models.{name}.url = {model.url!r} gives no score: {error}; have vLLM serve the"
            " model there (vllm serve PATH) before the run starts"
        ) from None
    scores = [said[question.digest] for question in raw]
    if all(0 <= score <= 1 for score in scores) and scores == [said[q.digest] for q in activated]:
        shown = ", ".join(f"{score:.4g}" for score in scores)
        raise UserError(
            f"reward_models.{name}.url = {model.url!r} answers with {shown} whether it is asked for"
            " an activation (use_activation) or for none, so these may be probabilities, among"
            " which good answers hardly differ; have vLLM serve the model, or load it by path"
        )
    return dict(zip((question.digest for question in raw), scores, strict=True))


async def _ask_alone(
    name: str, model: BroughtRewardModel, questions: Sequence[JudgeQuestion]
) -> dict[str, float]:
    """Return the score of each question, asked one after the other; nothing is kept. Of a server
    that is down one is told at once: it is asked twice at most."""
    limits = model.limits.model_copy(update={"retries": min(1, model.limits.retries)})
    model = model.model_copy(update={"limits": limits})
    with TemporaryDirectory() as folder:
        setup = JudgeSetup({}, Path(folder), "probe")
        access = access_to(setup, f"reward_models.{name}", model.key_env, lock="probe")
        with closing(access):
            async with RewardModelClient(name, model, access) as client:
                return {each.digest: float(await client.ask(each)) for each in questions}


def _compare(
    name: str, model: BroughtRewardModel, scores: Mapping[str, float], cache: JudgeCache
) -> None:
    """Refuse other scores of the probes than were kept for this name and version."""
    for digest, before in cache.find([*scores]).items():
        kept, now = float(before), scores[digest]
        if abs(kept - now) > _ABSOLUTE + _RELATIVE * abs(kept):
            raise UserError(
                f"reward_models.{name}.url = {model.url!r} scores a fixed answer with {now:.4g},"
                f" and scored it with {kept:.4g} when version {model.version!r} was first used with"
                " this store, so it serves other weights; give them another version"
            )


def _question(
    name: str, model: BroughtRewardModel, messages: Messages, *, activated: bool = False
) -> JudgeQuestion:
    """Return what is asked about a conversation. By default vLLM answers with the activation of
    the score, mostly a sigmoid: 0.4565 for -0.1744."""
    body = {"messages": [dict(message) for message in messages], "use_activation": activated}
    text = json.dumps(body, separators=(",", ":"))
    identity = json.dumps(["reward model", name, model.version, text])
    return JudgeQuestion(hashlib.sha256(identity.encode()).hexdigest(), "", text)
