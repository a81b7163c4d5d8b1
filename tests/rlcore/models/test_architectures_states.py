"""Hybrids are told from models that keep keys and values alone."""

from pathlib import Path

import pytest

from rlcore.models.architectures import check_states, keeps_states
from schemas.errors import UserError
from tests.architectures import HYBRIDS, write_model


def test_a_model_of_keys_and_values_passes(base: Path) -> None:
    assert not keeps_states(str(base))
    check_states(str(base))


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_is_named(name: str, tmp_path: Path) -> None:
    write_model(tmp_path, name)
    assert keeps_states(str(tmp_path))
    with pytest.raises(UserError, match=f"is a {name}, whose layers keep states"):
        check_states(str(tmp_path))
