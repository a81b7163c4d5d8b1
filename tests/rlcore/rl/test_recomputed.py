"""The critic's figure, made again by SQL that shares no code with the trainer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rlcore.results.queries import query
from rlcore.rl.phases import Phases
from rlcore.store.artifacts import ArtifactStore
from tests.rlcore.rl.test_records_history import digits, one_iteration

pytestmark = pytest.mark.timeout(120)
ITERATIONS = 2
EXPLAINED = """
with tokens as (
  select iteration, unnest("values") as v, unnest("returns") as r, unnest(loss_mask) as sampled
  from trajectories
)
select iteration, 1 - var_samp(r - v) / (var_samp(r) + 1e-5) as explained
from tokens where sampled and v is not null and r is not null
group by iteration order by iteration
"""


def test_explained_variance_is_that_of_the_recorded_values(
    make_phases: Callable[..., Phases], tmp_path: Path
) -> None:
    """What a user plots of the store is what the run reported."""
    store = ArtifactStore(str(tmp_path / "store"))
    phases = make_phases("quickstart-ppo", digits, {"rl.iterations": ITERATIONS}, store=store)
    state = phases.start()
    reported = []
    while state.iteration < ITERATIONS:
        state = one_iteration(phases, state)
        reported.append(phases.metrics.latest["critic/vf_explained_var"])
    made = query(store, EXPLAINED)
    assert made["iteration"].to_list() == [1, 2]
    assert made["explained"].to_list() == pytest.approx(reported, rel=1e-4, abs=1e-5)
