"""Four of the architectures of ``make architectures``, through the whole pipeline."""

import json
from pathlib import Path

import pytest

from flows.cli import main
from flows.paths import ROOT
from rlcore.learner.packing_check import LISTED
from tests.architectures import HYBRIDS, overrides, try_all, write_model


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("GPTNeoXForCausalLM", True),  # another name in memory
        ("Qwen3MoeForCausalLM", True),  # experts that are one tensor in memory
        ("Gemma2ForCausalLM", True),  # capped logits and attention, windows
        ("FalconH1ForCausalLM", False),  # a hybrid
    ],
)
def test_a_model_goes_through_the_pipeline(name: str, packed: bool) -> None:
    (row,) = try_all([name])
    assert (row.problem, row.packed) == ("", packed)
    assert row.gap is not None
    assert row.gap < 1e-4
    assert row.vllm == "yes"


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_is_refused_before_a_run_where_the_engine_cannot_continue_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It failed in RL's first rollout, after SFT: list index out of range."""
    write_model(tmp_path / "base", name)
    given = overrides(tmp_path / "base", "transformers")
    settings = [f"{key}={json.dumps(value)}" for key, value in given.items()]
    words = ["run", "quickstart", *(word for one in settings for word in ("-o", one)), "--dry-run"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"is a {name}, whose layers keep states besides keys and values" in said
    assert "set hardware.rollout.engine to vllm" in said


def test_the_document_has_a_row_of_every_listed_class() -> None:
    text = (ROOT / "docs" / "reference" / "architectures.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip(" `") for line in text.splitlines() if line.startswith("| `")]
    assert rows == list(LISTED)
