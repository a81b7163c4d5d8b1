"""A reward model behind vLLM's /classify: raw scores, probed, asked once; what fails is asked again
and then has no score, never 0."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rlcore.rewards.judges.reward_model import ServedModel, probe_model
from rlcore.rewards.judges.setup import JudgeSetup
from schemas.errors import UserError
from schemas.reward_model import BroughtRewardModel
from tests.rlcore.rewards.judges.server import KEY, Reply, judge_server

Request = Mapping[str, Any]
BASE = "http://127.0.0.1:1"


def served(url: str, **keys: Any) -> BroughtRewardModel:
    limits = {"timeout_s": 5.0, "retries": 2, **keys.pop("limits", {})}
    return BroughtRewardModel.model_validate({"url": url, "version": "1", "limits": limits} | keys)


def setup(folder: Path) -> JudgeSetup:
    return JudgeSetup({}, folder / "judges", "run")


def scores(*found: Any, times: int = 1) -> Reply:
    data = [{"index": 0, "label": "LABEL_0", "probs": [*found], "num_classes": len(found)}] * times
    return Reply(raw=json.dumps({"object": "list", "model": "m", "data": data}).encode())


def worth(request: Request) -> float:
    """The raw score: the length of the answer, less ten."""
    return len(request["messages"][-1]["content"]) - 10.0


def vllm(request: Request, number: int) -> Reply:
    """As vLLM answers: the sigmoid unless the request says otherwise."""
    del number
    score = worth(request)
    activated = request.get("use_activation") is not False
    return scores(1 / (1 + math.exp(-score)) if activated else score)


def conversations(*answers: str) -> list[list[dict[str, str]]]:
    user = {"role": "user", "content": "Be short."}
    return [[user, {"role": "assistant", "content": answer}] for answer in answers]


def ask(folder: Path, model: BroughtRewardModel, *answers: str) -> list[float | str]:
    scorer = ServedModel("mine", model, setup(folder))
    try:
        return scorer.score(conversations(*answers))
    finally:
        scorer.close()


def test_raw_scores_are_asked_for_once_each(tmp_path: Path) -> None:
    with judge_server(vllm) as server:
        model = served(server.url, limits={"concurrency": 3})
        answers = ["a", "bb" * 9, "", "a"]
        assert ask(tmp_path, model, *answers) == [-9.0, 8.0, -10.0, -9.0]
        asked = server.requests[6:]  # after three probes, with and without activation
        assert len(asked) == 3
        assert all(request["use_activation"] is False for request in asked)
        sent = [request["messages"] for request in asked]
        assert sorted(sent, key=str) == sorted(conversations(*answers[:3]), key=str)
        assert 1 <= server.most <= 3
        assert ask(tmp_path, model, *answers, "new") == [-9.0, 8.0, -10.0, -9.0, -7.0]
        assert len(server.requests) == 6 + 3 + 6 + 1
        other = served(server.url, version="2")  # its weights are others
        assert ask(tmp_path, other, "a") == [-9.0]
        assert len(server.requests) == 16 + 6 + 1


def test_the_key_is_sent_and_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RM_KEY", raising=False)
    with judge_server(vllm) as server:
        model = served(server.url, key_env="RM_KEY")
        with pytest.raises(UserError, match=r"reward_models.mine.key_env = 'RM_KEY' is not set"):
            ask(tmp_path, model, "a")
        assert not server.requests
        monkeypatch.setenv("RM_KEY", KEY)
        ask(tmp_path, model, "a")
        assert set(server.keys) == {f"Bearer {KEY}"}


FAILURES: dict[str, tuple[Reply, str]] = {
    "busy": (Reply(status=429, headers={"Retry-After": "0.01"}), "status 429 in each of 3"),
    "broken": (Reply(status=500), "status 500 in each of 3"),
    "hanging": (Reply(hang=True), "did not answer within 0.5 s in each of 3"),
    "two labels": (scores(0.5, 0.5), "2 labels, and a reward is one number"),
    "two answers": (scores(0.5, times=2), "2 classifications of one conversation"),
    "none": (scores(0.5, times=0), "0 classifications"),
    "NaN": (scores(math.nan), "in each of 3 attempts with no score: nan is not a finite"),
    "infinite": (scores(math.inf), "inf is not a finite"),
    "null": (scores(None), "None is not a finite"),
    "true": (scores(True), "True is not a finite"),
    "text": (scores("0.5"), "'0.5' is not a finite"),
    "no JSON": (Reply(raw=b"<html>"), "with no score: "),
    "another API": (Reply(raw=b'{"choices": []}'), "with no score: {'choices': []}"),
}


def test_what_fails_is_repeated_and_then_has_no_score(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()

    def answer(request: dict[str, Any], number: int) -> Reply:
        said = request["messages"][-1]["content"]
        asked[said] += 1
        return FAILURES[said][0] if said in FAILURES else vllm(request, number)

    with judge_server(answer) as server:
        (hanging, *others) = sorted(FAILURES, key=lambda name: name != "hanging")
        quick = served(server.url, limits={"timeout_s": 0.5})
        reasons = dict(zip([hanging], ask(tmp_path, quick, hanging), strict=True))
        model = served(server.url, limits={"timeout_s": 60.0, "concurrency": 20})
        fine, *lost = ask(tmp_path, model, "fine", *others)
        assert fine == -6.0
        reasons |= dict(zip(others, lost, strict=True))
        for name, (_, said) in FAILURES.items():
            reason = reasons[name]
            assert isinstance(reason, str), name
            assert said in reason, name
            assert "reward model 'mine'" in reason
            assert asked[name] == 3 or name == hanging, name  # a busy machine loses a request
        server.answer = vllm
        again = ask(tmp_path, model, "fine", *FAILURES)
        assert again == [-6.0, *(len(name) - 10.0 for name in FAILURES)], "a failure is not kept"


def test_an_answer_that_is_too_long_is_not_asked_about_again(tmp_path: Path) -> None:
    def answer(request: dict[str, Any], number: int) -> Reply:
        if len(request["messages"][-1]["content"]) > 99:
            return Reply(status=400, raw=b'{"message": "context is 99"}')
        return vllm(request, number)

    with judge_server(answer) as server:
        fine, lost = ask(tmp_path, served(server.url), "fine", "a" * 100)
        assert (fine, len(server.requests)) == (-6.0, 8)
        assert "status 400" in str(lost)


def refused(folder: Path, model: BroughtRewardModel) -> str:
    with pytest.raises(UserError) as raised:
        probe_model("mine", model, setup(folder))
    with pytest.raises(UserError) as again:
        ServedModel("mine", model, setup(folder))
    assert str(raised.value) == str(again.value)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_probabilities_are_refused(tmp_path: Path) -> None:
    """A server that does not know use_activation gives the sigmoid, which saturates."""
    with judge_server(
        lambda request, number: vllm({**request, "use_activation": None}, number)
    ) as s:
        said = refused(tmp_path, served(s.url))
        assert "may be probabilities" in said
        assert f"reward_models.mine.url = '{s.url}'" in said
    with judge_server(lambda request, _: scores(worth(request))) as identity:
        probe_model("mine", served(identity.url), setup(tmp_path))


@pytest.mark.parametrize("reply", [Reply(status=404), scores(0.1, 0.9), Reply(raw=b"{}")])
def test_a_server_without_scores_is_refused(reply: Reply, tmp_path: Path) -> None:
    with judge_server(lambda request, number: reply) as server:
        said = refused(tmp_path, served(server.url))
        assert "gives no score: reward model 'mine'" in said
        assert said.endswith(
            "have vLLM serve the model there (vllm serve PATH) before the run starts"
        )


def test_a_server_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "no connection to reward model 'mine'" in refused(tmp_path, served(BASE))


def test_other_weights_under_the_same_version_are_refused(tmp_path: Path) -> None:
    other: Callable[..., Reply] = lambda request, _: scores(worth(request) * 1.2)  # noqa: E731
    rounded: Callable[..., Reply] = lambda request, _: scores(worth(request) * 1.001)  # noqa: E731
    with judge_server(vllm) as server:
        model = served(server.url)
        probe_model("mine", model, setup(tmp_path))
        assert not setup(tmp_path).cache.exists(), "a dry run writes nothing"
        ask(tmp_path, model, "a")
        server.answer = rounded
        probe_model("mine", model, setup(tmp_path))
        server.answer = other
        assert "so it serves other weights; give them another version" in refused(tmp_path, model)
        probe_model("mine", served(server.url, version="2"), setup(tmp_path))
        probe_model("other", model, setup(tmp_path))


def test_what_a_recipe_says_wrong_is_one_sentence() -> None:
    given, limits = {"url": BASE, "version": "1"}, {"concurrency": 2}
    wrong: dict[str, dict[str, Any]] = {
        "neither is set of path and url": {},
        "both are set of path and url": {"path": "a", "url": BASE, "version": "1"},
        "version is not set and url is": {"url": BASE},
        "dtype is set and says nothing of a model by url": given | {"dtype": "bfloat16"},
        "limits is set and says nothing of a model by path": {"path": "a", "limits": limits},
        "url = 'ftp://a' is not an http:// or https:// address": {"url": "ftp://a", "version": "1"},
    }
    for said, keys in wrong.items():
        with pytest.raises(ValidationError) as raised:
            BroughtRewardModel.model_validate(keys)
        assert said in str(raised.value)


def test_its_address_is_in_no_key() -> None:
    here = served(BASE, key_env="A", limits={"concurrency": 2}).identity
    assert (
        here == served("https://elsewhere:1/v1").identity == {"version": "1", "observations": False}
    )
    assert served(BASE, version="2").identity != here
    assert BroughtRewardModel(path="a").identity == {"dtype": "float32", "observations": False}
