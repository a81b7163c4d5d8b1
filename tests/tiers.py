"""Which cases of a test every change waits for, where all of a kind take long."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def fast(cases: Iterable[Any], *kept: Any) -> Sequence[Any]:
    """Return all of ``cases``, marked slow but for those ``kept``, which must be among them."""
    named = list(cases)
    assert set(kept) <= set(named), f"{set(kept) - set(named)} are no cases"
    return [each if each in kept else pytest.param(each, marks=pytest.mark.slow) for each in named]
