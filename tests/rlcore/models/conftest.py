"""The model that ``scratch`` describes, built once."""

from pathlib import Path

import pytest

from rlcore.cluster.host_settings import limit_onednn
from rlcore.models.base import build_base_model
from tests.rlcore.models.scratch import SCRATCH, TEXTS

limit_onednn()  # as learner and engine do, before anything is computed in bfloat16


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its directory, in an artifact's place."""
    target = tmp_path_factory.mktemp("artifact") / "model"
    return build_base_model(SCRATCH, target, texts=TEXTS, seed=0)
