"""``auto`` means the same engine on every machine, and a run continues with the one that it has."""

from typing import Any

import pytest

from rlcore.engines import registry
from rlcore.engines.registry import Choice, check_installed, choose, resumed_choice
from schemas.errors import UserError
from schemas.hardware import SMALL_PARAMETERS, HardwareSection

RECORDED = "auto: what this run has sampled so far is by it"


SHARED = {"tensor_parallel": 2, "gpus_per_engine": 2}


def hardware(
    engine: str = "auto", rollout: dict[str, Any] | None = None, **fields: Any
) -> HardwareSection:
    given = {"engine": engine, **(rollout or {})}
    return HardwareSection.model_validate({**fields, "rollout": given})


@pytest.mark.parametrize(
    ("section", "device", "parameters", "engine"),
    [
        (hardware(), "cpu", SMALL_PARAMETERS - 1, "transformers"),
        (hardware(), "cpu", SMALL_PARAMETERS, "vllm"),
        (hardware(), "cuda", 1, "vllm"),
        (hardware(rollout=SHARED), "cpu", 1, "vllm"),
        (hardware(cluster="in_process"), "cpu", SMALL_PARAMETERS, "transformers"),
        (hardware("vllm"), "cpu", 1, "vllm"),
        (hardware("transformers"), "cuda", 10**12, "transformers"),
        (hardware("my.engine:Mine"), "cpu", 1, "my.engine:Mine"),
    ],
)
def test_the_rule_is_of_recipe_and_device(
    section: HardwareSection, device: str, parameters: int, engine: str
) -> None:
    assert choose(section, device, parameters).engine == engine


def test_what_is_recorded_counts_only_where_the_recipe_names_none() -> None:
    """Another engine draws other tokens: a resume on a machine with a GPU would be another run."""
    small, large = (choose(hardware(), "cpu", size) for size in (1, 10**9))
    assert resumed_choice(hardware(), small, "vllm") == Choice("vllm", RECORDED)
    assert resumed_choice(hardware(), large, "transformers") == Choice("transformers", RECORDED)
    for recorded in (None, "transformers", "the.users:Own"):
        assert resumed_choice(hardware(), small, recorded) == small
    named = hardware("transformers")
    assert resumed_choice(named, choose(named, "cpu", 1), "vllm").engine == "transformers"


def test_a_run_of_vllm_does_not_go_on_in_one_process_with_other_draws() -> None:
    section = hardware(cluster="in_process")
    with pytest.raises(UserError, match=r"began with 'vllm', .* set hardware.cluster to 'ray', or"):
        resumed_choice(section, choose(section, "cpu", 1), "vllm")


def test_a_missing_vllm_is_told_and_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    section = hardware()
    taken = choose(section, "cuda", 1)
    sentence = r"takes vllm \(the device is cuda\) and vllm is not installed; .* 'transformers'"
    with pytest.raises(UserError, match=sentence):
        check_installed(section, taken)
    check_installed(section, choose(section, "cpu", 1))  # by transformers
    check_installed(hardware(ray_address="a:1"), taken)  # the engines run elsewhere
    named = hardware("vllm")
    check_installed(named, choose(named, "cuda", 1))  # its own import tells
