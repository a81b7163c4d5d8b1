"""What is declared of the stages, without importing what they run."""

from flows.rl_pipeline import STAGES
from rlcore.store.versions import VERSIONS
from tasks.runtime.stage_keys import declared


def test_a_stage_counts_its_own_module() -> None:
    """One whose own file were left out would be served from before its last change."""
    found = declared()
    assert list(found) == list(STAGES)
    for stage, made in STAGES.items():
        assert made.declared.stage == found[stage].stage
        assert made._body.__module__ in VERSIONS[stage].code
