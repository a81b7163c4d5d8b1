"""One digest for one state, however it is held."""

from itertools import islice

import pytest
import torch

from rlcore.models import weight_digest
from rlcore.models.weight_digest import (
    DigestTap,
    combined_digest,
    state_digest,
    tensor_digests,
)
from schemas.errors import UserError


def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "b.weight": torch.randn(5, 7, generator=generator),
        "a.weight": torch.randn(3, generator=generator).bfloat16(),
        "scalar": torch.tensor(2),
        "empty": torch.zeros(0, 4),
    }


def test_digest_is_frozen() -> None:
    """Stored stamps are compared across versions of this code: the definition must not drift."""
    tensors = {"w": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.ones(2)}
    assert state_digest(tensors.items()) == (
        "97f4795399e216e5bcf32c7468b1cd1b9f8ab115766e19393876d837a6e33448"
    )


def test_digest_ignores_order_and_strides() -> None:
    """Learner and engine hold the same weights differently; a false alarm would stop the run."""
    expected = state_digest(state().items())
    backwards = dict(reversed(state().items()))
    backwards["b.weight"] = backwards["b.weight"].T.contiguous().T
    assert not backwards["b.weight"].is_contiguous()
    assert state_digest(backwards.items()) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update({"b.weight": s["b.weight"].double()}),
        lambda s: s.update({"b.weight": s["b.weight"].reshape(7, 5)}),
        lambda s: s.update({"c.weight": s.pop("b.weight")}),
        lambda s: s["b.weight"].view(-1)[3:4].mul_(1 + 1e-6),
        lambda s: s.pop("empty"),
    ],
    ids=["dtype", "shape", "name", "one ulp", "missing"],
)
def test_the_digest_sees_every_change(change) -> None:
    changed = state()
    change(changed)
    assert state_digest(changed.items()) != state_digest(state().items())


def test_large_tensors_hash_by_chunks(monkeypatch) -> None:
    """A tail beyond the last whole chunk that is not hashed would hide a changed row."""
    monkeypatch.setattr(weight_digest, "CHUNK_BYTES", 16)
    first = state_digest(state().items())
    changed = state()
    changed["b.weight"][-1, -1] += 1
    assert state_digest(changed.items()) != first


def test_a_tap_hashes_what_it_hands_on_before_its_taker_has_it() -> None:
    """A loader may reuse the memory it was given; the digest is of what it got."""
    many = {f"layer.{index}": torch.full((3, 4), float(index)) for index in range(40)}
    expected, tap, order = tensor_digests(many.items()), DigestTap(), []
    for name, tensor in tap.through(many.items()):
        tensor.zero_()
        order.append(name)
    assert order == list(many)
    assert tap.digests == expected
    assert state_digest(many.items()) != combined_digest(expected)


def test_a_tap_knows_only_what_was_taken() -> None:
    """What a loader never asked for never reached it."""
    many = {f"layer.{index}": torch.full((2,), float(index)) for index in range(40)}
    tap = DigestTap()
    taken = [name for name, _ in islice(tap.through(many.items()), 3)]
    assert set(tap.digests) == set(taken)


def test_tensor_digests_tell_which_tensor_changed() -> None:
    changed = state()
    changed["b.weight"].view(torch.int32).view(-1)[2] ^= 1
    before, after = tensor_digests(state().items()), tensor_digests(changed.items())
    assert {name for name in before if before[name] != after[name]} == {"b.weight"}
    assert state_digest(changed.items()) == combined_digest(after)


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(UserError, match="holds 'w' twice"):
        state_digest([("w", torch.ones(1)), ("w", torch.ones(1))])
