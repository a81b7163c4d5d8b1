"""Updates are made once, of the version they were made for."""

from dataclasses import replace

import pytest

from rlcore.algorithms.objective import PolicyObjective
from rlcore.learner.spec import Term, VersionConflict
from schemas.errors import UserError
from tests.rlcore.learner.samples import make_batch, request_of


def test_update_is_a_compare_and_set(learner_of):
    """A retried task gets the recorded result; a stale one is refused; neither steps twice."""
    learner = learner_of()
    result = learner.update(request_of(0, "a"))
    stamp = learner.stamp()
    assert (result.version, stamp.version, len(result.steps)) == (1, 1, 2)
    assert result.metrics["actor/lr"] == pytest.approx(0.045)
    assert result.metrics["actor/ratio_max"] == max(s["actor/ratio_max"] for s in result.steps)
    assert learner.update(request_of(0, "a")) == result
    assert learner.stamp() == stamp
    for version, digest in [(0, "b"), (2, "a"), (2, "c")]:
        with pytest.raises(VersionConflict, match=rf"requested for version {version} .* version 1"):
            learner.update(request_of(version, digest))
    assert learner.stamp() == stamp
    assert learner.update(request_of(1, "b", seed=5)).version == 2


def test_update_that_broke_off_must_be_reloaded(learner_of, tmp_path):
    """Weights between two versions must not be trained on or called by either version."""
    learner = learner_of()
    learner.save(tmp_path / "checkpoint")
    good = request_of(0, "a")
    poor = [Term(replace(make_batch(6), per_token={}), PolicyObjective())]
    with pytest.raises(UserError, match="reads per_token"):
        learner.update(replace(good, mini_batches=[good.mini_batches[0], poor]))
    with pytest.raises(VersionConflict, match=r"failed between .* load a checkpoint"):
        learner.update(good)
    learner.load(tmp_path / "checkpoint")
    assert learner.update(good).metrics == learner_of().update(good).metrics
