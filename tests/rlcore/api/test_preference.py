"""DPO and KTO from Python: plain rows in, a model out; refusals, and a call that continues."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from flows.training import (
    DPOConfig,
    KTOConfig,
    train_with_dpo,
    train_with_dpo_sync,
    train_with_kto_sync,
)
from rlcore.learner.learner import Learner
from schemas.errors import UserError
from tests.rlcore.api.tiny import write_tiny_model

PAIRS = [
    {"prompt": f"What is {n} + {n}?", "chosen": f" {2 * n}", "rejected": " I do not know."}
    for n in range(1, 41)
]
SMALL: dict[str, Any] = {
    "threads": 1,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "max_length": 64,
    "epochs": 3,
}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "model"))


def test_pairs_are_learnt(tiny: str) -> None:
    model, tokenizer, metrics = train_with_dpo_sync(tiny, PAIRS, DPOConfig(**SMALL))
    assert model.num_parameters() > 0
    assert tokenizer.decode(tokenizer.encode("What")) == "What"
    losses = metrics["preference/loss"]
    assert losses[0] == pytest.approx(0.693, abs=1e-3)  # the policy is its reference
    assert losses[-1] < 0.6
    assert metrics["rewards/margins"][-1] > metrics["rewards/margins"][0]


def test_single_responses_are_learnt(tiny: str) -> None:
    rows = [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row in PAIRS
        for side in ("chosen", "rejected")
    ]
    *_, metrics = train_with_kto_sync(tiny, rows, KTOConfig(**SMALL))
    assert metrics["preference/loss"][-1] < metrics["preference/loss"][0]


def test_the_same_call_continues_and_a_finished_one_trains_nothing(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in its seventh step, it makes the last three again to the same weights."""
    config = DPOConfig(**SMALL, checkpoint_every=3)
    expected, *_ = train_with_dpo_sync(tiny, PAIRS, config)
    steps, whole = 0, Learner.step

    def failing(learner: Learner, *arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 7:
            raise KeyboardInterrupt
        return whole(learner, *arguments)

    monkeypatch.setattr(Learner, "step", failing)
    with pytest.raises(KeyboardInterrupt):
        train_with_dpo_sync(tiny, PAIRS, config, str(tmp_path / "out"))
    model, _, metrics = train_with_dpo_sync(tiny, PAIRS, config, str(tmp_path / "out"))
    for name, tensor in expected.state_dict().items():
        assert tensor.equal(model.state_dict()[name]), name
    total = len(metrics["preference/loss"])
    assert steps == 7 + total - 6
    kept = (tmp_path / "out" / "preferences.jsonl").read_text().splitlines()
    assert len(kept) == len(PAIRS), "which data made the model can be read later"
    with pytest.raises(UserError, match="holds a call with other arguments"):
        train_with_dpo_sync(tiny, PAIRS[:30], config, str(tmp_path / "out"))
    (tmp_path / "out" / "model" / "mine").touch()
    again, *_ = train_with_dpo_sync(tiny, PAIRS, config, str(tmp_path / "out"))
    assert steps == 7 + total - 6
    assert (tmp_path / "out" / "model" / "config.json").is_file()
    assert (tmp_path / "out" / "model" / "mine").is_file(), "the user may have worked on it"
    for name, tensor in expected.state_dict().items():
        assert tensor.equal(again.state_dict()[name]), name


def test_cancelling_ends_the_run_after_its_step(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's stop button waited for the whole training."""
    steps, whole, begun = 0, Learner.step, threading.Event()

    def counted(learner: Learner, *arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        begun.set()
        return whole(learner, *arguments)

    async def main() -> None:
        run = asyncio.create_task(train_with_dpo(tiny, PAIRS, DPOConfig(**{**SMALL, "epochs": 99})))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        run.cancel()
        await run

    monkeypatch.setattr(Learner, "step", counted)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert steps < 99


@pytest.mark.parametrize(
    ("rows", "config", "sentence"),
    [
        ([], {}, r"preferences = \[\] holds no rows; give a list of dicts with prompt"),
        ("abc", {}, "preferences = 'abc' holds no rows"),
        (["abc"], {}, r"preferences\[0\] = 'abc' is no row of texts"),
        ([*PAIRS, {"prompt": {1}}], {}, r"preferences\[40\] = .* is no row of texts"),
        ([{"prompt": "a", "chosen": "b"}], {}, "rejected"),
        (
            PAIRS,
            {"max_length": 10**6},
            "DPOConfig.max_length = 1000000 exceeds the model's context",
        ),
        (PAIRS, {"overrides": {"preference.bta": 1}}, "beta"),
    ],
)
def test_what_cannot_work_is_refused_before_a_step(
    tiny: str, rows: Any, config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        train_with_dpo_sync(tiny, rows, DPOConfig(**{**SMALL, **config}))


def test_a_name_that_is_no_setting_is_answered() -> None:
    with pytest.raises(UserError, match=r"DPOConfig\.bta is not a setting; did you mean 'beta'"):
        DPOConfig(bta=0.1)  # pyright: ignore[reportCallIssue]


def test_a_config_of_another_algorithm_is_refused(tiny: str) -> None:
    other: Any = KTOConfig()
    with pytest.raises(UserError, match="train_with_dpo takes a DPOConfig and config is a KTOConf"):
        train_with_dpo_sync(tiny, PAIRS, other)
