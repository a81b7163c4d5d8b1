"""What the hub and its readers are told of a model."""

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from rlcore.evaluation.export import export_model
from rlcore.evaluation.hf_directory import Proof
from rlcore.evaluation.license import named
from rlcore.evaluation.model_card import RewardTerm, escape_markdown, render_card
from schemas.errors import UserError
from tests.rlcore.evaluation.cards import card, front_matter, results


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
        rf"| the policy after RL: this model | policy | c3d4/000007 | {'f' * 64} |",
        f"* digest: {'b' * 64}",
        "| gsm8k | 1 | |",
        "| openai/gsm8k | train | train | 7,473 |",
        "* torch: 2.13.0",
        "* algorithm: grpo",
        "* temperature: 1.0",
    ):
        assert line in text, f"missing from the card: {line}\n{text}"


def test_text_from_outside_cannot_change_the_card(policy_dir: Path, tmp_path: Path) -> None:
    """A data set's name must not end up as markup or metadata on somebody's hub page."""
    evil = "x|y\n---\nlicense: mit\n<script>alert(1)</script> [click](http://evil) `{{ 7*7 }}`"
    changed = card(
        name=evil,
        training={evil: evil},
        base_model=evil,
        datasets=(evil,),
        sources=(evil,),
        reward=(RewardTerm(evil, 1.0, False),),
        license=named(evil, link=evil),
    )
    export_model(policy_dir, tmp_path / "out", dtype=None, card=changed)
    text = (tmp_path / "out" / "README.md").read_text()
    body = text.split("\n---\n", 1)[1]
    assert "<script>" not in body
    assert not re.search(r"(?<!\\)\]\(http", body), "a live link"
    assert "49" not in body.split("## Lineage")[0].split("## How it was trained")[1]
    assert "\n---\n" not in body
    data = front_matter(tmp_path / "out")
    assert data["license"] == "other"
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


PROOF = Proof(1234567, "float32", True, "d" * 64, "e" * 64, 0.0, "4.57", ["'<|end|>' (1)"])


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


@pytest.mark.parametrize(
    ("name", "link", "metadata"),
    [
        ("Apache-2.0", None, {"license": "apache-2.0"}),
        (
            "qwen-research",
            "https://qwen.example/LICENSE",
            {
                "license": "other",
                "license_name": "qwen-research",
                "license_link": "https://qwen.example/LICENSE",
            },
        ),
    ],
)
def test_the_hub_is_told_the_license(name: str, link: str | None, metadata: dict[str, str]) -> None:
    """The hub refuses a name that is not on its list as ``license``."""
    text = render_card(card(license=named(name, link)), PROOF)
    front = yaml.safe_load(text.split("---\n")[1])
    assert {key: front[key] for key in front if key.startswith("license")} == metadata
    shown = metadata.get("license_name", metadata["license"])
    assert f"License: {shown}." in " ".join(text.split())


def test_a_license_that_nobody_stated_is_said_to_be_so() -> None:
    text = render_card(card(), PROOF)
    assert "License: not stated; the recipe's key export.license states it." in " ".join(
        text.split()
    )


RULE, ANOTHER = RewardTerm("gsm8k", 1.0, False), RewardTerm("mine:judge", 0.5, False)
MODEL, WATCHED = RewardTerm("reward_model", 1.0, True), RewardTerm("mine:truth", 0.0, False)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ((RULE,), "reinforcement learning on a reward function."),
        ((RULE, ANOTHER), "reinforcement learning on 2 reward functions."),
        ((MODEL, WATCHED), "reinforcement learning on a trained reward model."),
        ((MODEL, RULE), "reinforcement learning on a trained reward model and a reward function."),
    ],
)
def test_the_card_says_what_was_learnt_from(reward: tuple[RewardTerm, ...], words: str) -> None:
    """A model that pleased a reward model is not one that was verified."""
    text = render_card(card(reward=reward), PROOF)
    assert words in " ".join(text.split())
    assert "| mine:truth | 0 | reported, not trained on |" in text or WATCHED not in reward
    assert "| reward_model | 1 | a trained model |".replace("_", "\\_") in text or (
        MODEL not in reward
    )


def test_the_snippet_stands_in_the_card_as_it_is() -> None:
    """Escaped like prose, it would be no Python."""
    code = "answer = model.generate(**inputs)[0]  # a_b | c\nprint(answer)\n"
    assert f"```python\n{code}```\n" in render_card(card(snippet=code), PROOF)
    assert "```" not in render_card(card(), PROOF)


def test_tables_have_a_line_per_row_and_no_gap() -> None:
    """A blank line ends a Markdown table, and a fact glued to another is lost."""
    text = render_card(card(evaluation={"a": "1"}, reward_model={"b": "2"}), PROOF)
    body = text.split("---\n", 2)[2]
    for block in body.split("\n\n"):
        lines = block.strip("\n").split("\n")
        kinds = {"table" if x[:1] == "|" else "list" if x[:2] == "* " else "text" for x in lines}
        assert len(kinds) == 1, block
    tables = [b for b in body.split("\n\n") if b.strip("\n").startswith("|")]
    assert len(tables) == 4
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.strip("\n").split("\n")}
        assert len(widths) == 1, table


def test_a_backslash_cannot_take_away_the_escape_behind_it() -> None:
    assert escape_markdown("\\[x](y)") == r"\\\[x\](y)"
