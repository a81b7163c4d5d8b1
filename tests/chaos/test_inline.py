"""Blows to a run in one process, as ``make chaos`` deals them."""

from collections.abc import Iterator

import pytest

from tests.chaos.__main__ import inline_site
from tests.chaos.blows import generator
from tests.chaos.inline import Inline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inline]:
    with inline_site(tmp_path_factory.mktemp("chaos")) as made:
        made.undisturbed()
        yield made


@pytest.mark.parametrize("kind", ["killed", "terminated", "stopped", "disk-full"])
def test_a_run_that_is_struck_comes_to_the_same_weights(site: Inline, kind: str) -> None:
    blow = site.strike(kind, 0, generator(0, kind, 0))
    assert blow.held, blow


def test_other_weights_are_found_out(site: Inline) -> None:
    """A check that cannot fail proves nothing."""
    expected, site.expected = site.expected, "0" * 64
    blow = site.strike("stopped", 1, generator(0, "stopped", 1))
    site.expected = expected
    assert not blow.held
    assert "other weights" in blow.faults[0]
