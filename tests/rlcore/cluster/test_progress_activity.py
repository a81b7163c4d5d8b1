"""What a run is doing is the innermost of what it has begun and not ended."""

import pytest

from rlcore.cluster.progress import activity, current


def test_the_innermost_activity_is_named() -> None:
    assert current() is None
    with activity("stage rl"):
        with activity("RL phase gen"):
            assert (current() or ("",))[0] == "RL phase gen"
        with pytest.raises(ZeroDivisionError), activity("RL phase reward"):
            _ = 1 / 0
        what, seconds = current() or ("", -1.0)
        assert (what, seconds >= 0) == ("stage rl", True)
    assert current() is None
