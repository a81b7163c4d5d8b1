"""An answer of a recorded iteration, walked through it: what the update made of it, and no more."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from flows.paths import ROOT
from rlcore.rl.phases import Phases
from rlcore.rl.replay import recorded_kl_coef
from rlcore.rl.token_trace import WalkedToken, walk
from rlcore.store.artifacts import ArtifactStore
from schemas.errors import UserError
from tests.rlcore.rl.conftest import Dataset
from tests.rlcore.rl.test_replay import VARIANTS, replay, trained

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
Make = Callable[..., Phases]
CLOSE: dict[str, Any] = {"rel": 1e-4, "abs": 1e-6}
AT = 2  # the iteration


SCHEMA = ROOT / "docs" / "schemas" / "replay.schema.json"


def walked(phases: Phases, name: str) -> list[WalkedToken]:
    with replay(phases, AT) as opened:
        while opened.at < AT - 1:
            opened.step()
        return walk(opened, name, str)


@pytest.mark.parametrize("recipe", ["quickstart", "quickstart-gspo"])
def test_terms_of_all_answers_of_a_step_are_its_reported_loss(
    recipe: str,
    make_phases: Make,
    dataset: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the second step the weights have moved: its log-probs are in no table. With sequence
    ratios they are measured against those that the update scored for itself."""
    monkeypatch.setitem(VARIANTS, "two", (recipe, VARIANTS["grpo"][1], VARIANTS["grpo"][2]))
    phases, _ = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "two")
    assert phases.recipe.scores_own_logprobs == (recipe == "quickstart-gspo")
    with replay(phases, AT) as opened:
        while opened.at < AT - 1:
            opened.step()
        reported = opened.learner.update(opened.request(AT)).result().steps[1]["actor/pg_loss"]
        names = opened.recorded.trained(AT)["trajectory_id"].to_list()
    tokens = [token for name in names for token in walked(phases, name)]
    second = [token for token in tokens if token.step == 2 and token.loss is not None]
    assert {token.step for token in tokens} == {1, 2}
    assert sum(token.loss or 0.0 for token in second) == pytest.approx(reported, **CLOSE)
    assert any(token.new != token.old for token in second)
    for token in (token for token in tokens if token.step == 1 and token.mask):
        assert token.ratio == pytest.approx(1.0, abs=1e-4), "no weight has moved"


def test_rewards_values_and_returns_are_the_recorded_ones(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    phases, _ = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "ppo")
    with replay(phases, AT) as opened:
        frame = opened.recorded.trained(AT)
        table = opened.recorded.advantages(AT)[1]
        coef = recorded_kl_coef(opened.recorded, AT)
    name = table["trajectory_id"][0]
    tokens = walked(phases, name)
    jsonschema.validate([asdict(token) for token in tokens], json.loads(SCHEMA.read_text()))
    mine = [token for token in tokens if token.step == tokens[0].step]
    score = frame["score"][0]
    sampled = [token for token in mine if token.mask]
    kl = sum(token.kl or 0.0 for token in sampled)
    assert [token.id for token in mine] == frame["token_ids"][0].to_list()
    assert coef is not None
    assert sum(token.reward or 0.0 for token in sampled) == pytest.approx(score - coef * kl)
    for column in ("values", "returns", "advantages"):
        found = {"values": "value", "advantages": "advantage"}.get(column, column)
        assert [getattr(token, found) for token in sampled] == pytest.approx(
            np.array(table[column][0].to_list())[frame["loss_mask"][0].to_list()]
        )
    assert all(token.value_loss is not None and token.value_loss >= 0 for token in sampled)
    assert all(token.reward is None and token.loss is None for token in mine if not token.mask)


def test_an_answer_that_is_not_there_is_refused_with_those_that_are(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    phases, _ = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "grpo")
    with replay(phases, AT) as opened:
        while opened.at < AT - 1:
            opened.step()
        rollouts = opened.recorded.trained(AT)
        name, uid = rollouts["trajectory_id"][0], rollouts["uid"][0]
        with pytest.raises(UserError, match=f"did you mean '{name}'"):
            walk(opened, f"{name}x", str)
        with pytest.raises(UserError, match=rf"is a prompt; its answers .* are .*{name}"):
            walk(opened, uid, str)


def test_old_log_probs_of_a_fused_update_are_those_that_it_scored(
    make_phases: Make, dataset: Dataset, tmp_path: Path
) -> None:
    phases, _ = trained(make_phases, dataset, ArtifactStore(tmp_path / "s"), "fused")
    ref = phases.store.find("own_logprobs", f"run/{AT:06d}")
    assert ref is not None
    name, _, own = phases.store.table(ref, "own_logprobs").row(0)
    tokens = walked(phases, name)
    sampled = [token for token in tokens if token.mask]
    assert [token.old for token in sampled] == pytest.approx(
        [own[token.token] for token in sampled], abs=1e-4
    )
    assert all(token.ratio in (1.0, None) for token in sampled)
