"""One Ray for the tests of a module, which ends with them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore.cluster.ray_cluster import RayCluster

SECRET = "hf_planted_0123456789"


@pytest.fixture(scope="module")
def on_ray(ray_home: Path) -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HF_TOKEN", SECRET)
        environment.setenv("HOME", str(ray_home))
        cluster = RayCluster()
        yield cluster
        cluster.close()
