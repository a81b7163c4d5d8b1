"""What "auto" means where; the package is really absent, or really does not import."""

import re
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlcore.learner.attention import choose_attention, flash_missing, flash_problem
from rlcore.learner.model import load_model
from rlcore.learner.spec import LearnerSpec
from schemas.errors import UserError


@pytest.fixture
def _broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flash_attn built for another torch: it is installed and does not import."""
    (tmp_path / "flash_attn.py").write_text(
        "raise ImportError('undefined symbol:\\n _ZN3c104cuda')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)


@pytest.mark.parametrize(
    ("wanted", "device", "dtype", "problem", "name", "why"),
    [
        ("auto", "cpu", "bfloat16", None, "sdpa", "as the device is cpu$"),
        ("auto", "cuda", "float32", None, "sdpa", "in bfloat16 and the model in float32"),
        (
            "auto",
            "cuda",
            "bfloat16",
            "it is gone",
            "sdpa",
            r"gone \(uv pip .*\.\[flash\]'",
        ),
        ("auto", "cuda", "bfloat16", None, "flash_attention_2", "flash_attn is there; sdpa if"),
        ("eager", "cuda", "bfloat16", "it is gone", "eager", "hardware.learner.attention says$"),
        ("flash_attention_2", "cuda", "bfloat16", None, "flash_attention_2", "attention says$"),
        ("flash_attention_2", "cuda", "bfloat16", "it is gone", "flash_attention_2", "but it is"),
    ],
)
def test_auto_is_a_rule_of_device_dtype_and_package(
    wanted: str, device: str, dtype: str, problem: str | None, name: str, why: str
) -> None:
    chosen = choose_attention(wanted, device=device, dtype=dtype, problem=problem)
    assert chosen.name == name
    assert chosen.why.startswith("as ")
    assert re.search(why, chosen.why), chosen.why


def test_an_absent_package_is_named() -> None:
    present = find_spec("flash_attn") is not None
    assert (flash_missing() is None) is present
    if not present:
        assert flash_problem() == "the package flash_attn is not installed"


@pytest.mark.usefixtures("_broken")
def test_a_package_for_another_torch_counts_as_unusable() -> None:
    """Found, it would end every run on the GPU with a linker's message."""
    assert flash_missing() is None
    expected = "the package flash_attn does not import: undefined symbol: _ZN3c104cuda"
    assert flash_problem() == expected


@pytest.mark.usefixtures("_broken")
def test_what_is_asked_for_and_cannot_be_imported_ends_before_the_model_is_loaded(
    spec: LearnerSpec,
) -> None:
    wanted = replace(spec, attn_implementation="flash_attention_2", dtype="bfloat16")
    with pytest.raises(UserError, match=r"'flash_attention_2' and the package .*; uv pip install "):
        load_model(wanted, "cuda")
