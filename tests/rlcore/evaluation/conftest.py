"""One small policy for all exports."""

from pathlib import Path

import pytest

from tests.rlcore.evaluation.cards import policy


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy(tmp_path_factory.mktemp("policy") / "model")
