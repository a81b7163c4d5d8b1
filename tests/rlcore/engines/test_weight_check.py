"""An update that does not fit is refused before a layer is touched, and names the tensor."""

from pathlib import Path

import pytest
import torch

from rlcore.engines.weight_check import read_update, require_verified, verify_handed, verify_loaded
from rlcore.models.weight_digest import (
    UNVERIFIED,
    WeightStamp,
    WeightSyncError,
    state_digest,
    tensor_digests,
)
from rlcore.models.weight_files import write_state

STATE = {"embed": torch.arange(6.0).reshape(3, 2), "head": torch.ones(2)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in STATE.items()}


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_state(tmp_path / "w.safetensors", STATE)
    return str(tmp_path / "w.safetensors")


def test_what_fits_is_read_whole(path: str) -> None:
    found = read_update(path, SHAPES)
    assert state_digest(found.items()) == state_digest(STATE.items())


@pytest.mark.parametrize(
    ("expected", "sentence"),
    [
        (SHAPES | {"norm": (2,), "bias": (2,)}, r"lacks 2 of 4 tensors, first 'bias'; send the"),
        ({"embed": (3, 2)}, r"holds 'head', which the model does not have"),
        ({"embed": (3, 2), "heads": (2,), "head": (2,)}, "lacks 1 of 3 tensors, first 'heads'"),
        (SHAPES | {"head": (3,)}, r"holds 'head' of shape \(2,\) and the model's is \(3,\); build"),
    ],
)
def test_what_does_not_fit_names_the_first_tensor(
    path: str, expected: dict[str, tuple[int, ...]], sentence: str
) -> None:
    with pytest.raises(WeightSyncError, match=sentence):
        read_update(path, expected)


def test_a_foreign_name_close_to_one_of_the_models_is_told(tmp_path: Path) -> None:
    write_state(tmp_path / "w", {"lm_head.weights": torch.ones(1), "lm_head.weight": torch.ones(1)})
    with pytest.raises(WeightSyncError, match=r"'lm_head\.weights'.*mean 'lm_head\.weight'"):
        read_update(str(tmp_path / "w"), {"lm_head.weight": (1,)})


def test_what_the_loader_was_handed_is_the_state_that_was_sent() -> None:
    sent = tensor_digests(STATE.items())
    assert verify_handed(sent, sent) == state_digest(STATE.items())


def test_tensors_that_were_lost_or_changed_on_their_way_are_named() -> None:
    """At most three of them: a 7B model has hundreds."""
    sent = {f"layer.{i}": f"{i}" for i in range(9)}
    with pytest.raises(
        WeightSyncError, match=r"5 of 9 tensors never .*'layer\.4', 'layer\.5', 'layer\.6', \.\.\.;"
    ):
        verify_handed({name: sent[name] for name in list(sent)[:4]}, sent)
    with pytest.raises(WeightSyncError, match=r"1 of 9 tensors .* other bytes .*'layer\.2'; rerun"):
        verify_handed(sent | {"layer.2": "x"}, sent)


def test_parameters_that_got_no_tensor_are_named() -> None:
    verify_loaded(set())
    with pytest.raises(WeightSyncError, match=r"2 of the model's parameters .*: 'a', 'b'; learner"):
        verify_loaded({"b", "a"})


def test_nothing_is_sampled_from_weights_that_are_not_proven() -> None:
    require_verified(WeightStamp(0, "d"))
    with pytest.raises(WeightSyncError, match=r"holds no proven weights.*load weights before"):
        require_verified(UNVERIFIED)
