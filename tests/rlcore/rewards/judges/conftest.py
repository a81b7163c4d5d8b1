"""Short waits between the attempts of a judge's client."""

import pytest
from tenacity import wait_fixed


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait 10 ms where a server asks for no time."""
    monkeypatch.setattr("rlcore.rewards.judges.client._BACKOFF", wait_fixed(0.01))
