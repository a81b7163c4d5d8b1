"""What the hub and its readers are told of a model."""

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.export.export import export_model
from rlcore.export.model_card import escape_markdown, render_card
from rlcore.export.publish import Proof
from schemas.errors import UserError
from tests.rlcore.export.cards import card, front_matter, results


def test_the_card_is_what_the_hub_reads(policy_dir: Path, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard as HubCard

    export_model(policy_dir, tmp_path / "out", dtype=None, card=card())
    data: Any = HubCard.load(tmp_path / "out" / "README.md").data
    assert data.base_model == "Qwen/Qwen2.5-0.5B-Instruct"
    assert data.datasets == ["openai/gsm8k"], "a generated source is no dataset of the hub"
    assert data.license == "unknown"
    assert data.eval_results is not None
    found = {(r.metric_type, r.metric_name, r.metric_value) for r in data.eval_results}
    assert found == {("accuracy", "greedy/acc", 0.9), ("pass@k", "sampled/pass@4", 0.9)}
    text = (tmp_path / "out" / "README.md").read_text()
    for line in (
        "| openai/gsm8k | test | greedy/acc |"
        r" 0.600 \[0.550, 0.650\] | 0.900 \[0.850, 0.950\] | 512 |",
        rf"| rl | policy | c3d4/000007 | {'f' * 64} |",
        "* algorithm: grpo",
        "* temperature: 1.0",
    ):
        assert line in text, f"missing from the card: {line}\n{text}"


def test_text_from_outside_cannot_change_the_card(policy_dir: Path, tmp_path: Path) -> None:
    """A data set's name must not end up as markup or metadata on somebody's hub page."""
    evil = "x|y\n---\nlicense: mit\n<script>alert(1)</script> [click](http://evil) `{{ 7*7 }}`"
    changed = card(name=evil, training={evil: evil}, base_model=evil, datasets=(evil,))
    export_model(policy_dir, tmp_path / "out", dtype=None, card=changed)
    text = (tmp_path / "out" / "README.md").read_text()
    body = text.split("\n---\n", 1)[1]
    assert "<script>" not in body
    assert not re.search(r"(?<!\\)\]\(http", body), "a live link"
    assert "49" not in body.split("## Lineage")[0].split("## How it was trained")[1]
    assert "\n---\n" not in body
    data = front_matter(tmp_path / "out")
    assert data["license"] == "unknown"
    assert "base_model" not in data
    assert "datasets" not in data


def test_escaped_text_stays_on_one_line_and_keeps_its_words() -> None:
    assert escape_markdown("a|b\n<i>*x*</i> & `c`") == r"a\|b &lt;i&gt;\*x\*&lt;/i&gt; &amp; \`c\`"


def test_a_path_of_this_machine_stays_out_of_the_card(policy_dir: Path, tmp_path: Path) -> None:
    local = card(base_model=str(policy_dir), datasets=(str(tmp_path),))
    export_model(policy_dir, tmp_path / "out", dtype=None, card=local)
    assert str(policy_dir.parent) not in (tmp_path / "out" / "README.md").read_text()


def test_results_without_the_exported_checkpoint_are_refused(
    policy_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="no row of checkpoint 'ppo', only of sft, rl"):
        export_model(policy_dir, tmp_path / "out", dtype=None, card=card(checkpoint="ppo"))
    assert not list(tmp_path.iterdir())


PROOF = Proof(1234567, "float32", True, "d" * 64, "e" * 64, 0.0)


def test_a_model_from_scratch_names_no_base_and_an_empty_section_says_so() -> None:
    text = render_card(card(base_model=None, training={}, evaluation={}), PROOF)
    assert "A model trained from scratch with reinforcement learning" in " ".join(text.split())
    assert "Not recorded." in text
    assert "How it was evaluated" not in text
    assert "1,234,567 parameters" in text


def test_a_checkpoint_without_a_figure_leaves_its_cell_empty() -> None:
    """Shifted to the left, another model's accuracy would stand in its column."""
    frame = results()
    partial = frame.filter((pl.col("checkpoint") == "rl") | (pl.col("metric") != "greedy/acc"))
    text = render_card(card(results=partial), PROOF)
    assert "| checkpoint" not in text
    assert r"| openai/gsm8k | test | greedy/acc |  | 0.900 \[0.850, 0.950\] | 512 |" in text


def test_the_licence_is_the_recipes() -> None:
    assert "License: apache-2.0." in render_card(card(license="apache-2.0"), PROOF)


def test_a_backslash_cannot_take_away_the_escape_behind_it() -> None:
    assert escape_markdown("\\[x](y)") == r"\\\[x\](y)"
