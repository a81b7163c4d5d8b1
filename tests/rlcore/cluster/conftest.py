"""One Ray for the tests of this directory: its token, read once per process, is in a separate
home."""

from collections.abc import Iterator

import pytest

from rlcore.cluster.ray_cluster import RayCluster

SECRET = "hf_planted_0123456789"


@pytest.fixture(scope="session")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HF_TOKEN", SECRET)
        environment.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        cluster = RayCluster()
        yield cluster
        cluster.close()
