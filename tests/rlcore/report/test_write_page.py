"""What a run shows on its page: everything is there, and nothing a model wrote becomes markup."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.data.datasheet import Sheet
from rlcore.diagnostics.watch import Finding
from rlcore.report.facts import Ending, Facts, gather
from rlcore.report.write import parts
from rlcore.results.summary import proxy_and_truth
from tests.rlcore.report.made import MadeRun

HOSTILE = "```\n</code><script>alert(1)</script>\n\x1b[31m[x](javascript:alert(1))"


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """Of a run that is in its stage rl, before an iteration."""
    made = MadeRun(tmp_path / "runs")
    made.prepare()
    made.stage("rl", "policy", made.key)
    return gather(made.open(), Ending("running"))


def _parts(facts: Facts) -> dict[str, str]:
    """Return the text of each part by key; every picture is drawn, and named in its address."""

    def keep(name: str, png: bytes) -> str:
        assert png.startswith(b"\x89PNG")
        return f"/reports/a/{name}.png"

    found = list(parts(facts, Path("/runs/reports/a"), keep))
    assert len({part.key for part in found}) == len(found)
    return {part.key: part.markdown for part in found}


TURNS = [{"role": "assistant", "content": HOSTILE}, {"role": "tool", "content": "42 <b>"}]


def _completion(uid: str, checkpoint: str, outcome: str) -> dict[str, Any]:
    return {
        "checkpoint": checkpoint,
        "uid": uid,
        "data_source": "arith|metic",
        "mode": "greedy",
        "sample": 0,
        "prompt": f"What is {uid}?",
        "response": HOSTILE,
        "ground_truth": "<b>41</b>",
        "outcome": outcome,
        "finish_reason": "stop",
        "num_tokens": 22,
        "score": 0.0,
        "turns": [] if uid == "same" else TURNS,
    }


def test_a_page_begins_with_its_verdict_and_leads_to_the_report(facts: Facts) -> None:
    ended = replace(facts, verdict="Iteration 2 of 3", reason="a_b", state="failed")
    (key, text), *_ = _parts(ended).items()
    assert key == "run"
    assert text.startswith("## quickstart\\-0123abcd: failed\n\n**Iteration 2 of 3.**\n\n**Why")
    assert "](/reports/a/index.html)" in text
    assert "* in the stage rl\n" in text
    assert text.endswith("* overrides: none")


def test_lineage_has_a_row_and_the_report(facts: Facts) -> None:
    text = _parts(facts)["lineage"]
    assert "| rl | not ended | policy" in text
    assert "](/reports/a/index.html)" in text


def test_the_datasheet_is_on_the_page_as_text(facts: Facts) -> None:
    """Names of files and sources are a user's: none of them may become markup."""
    sheets = [
        Sheet("Rows read", ("source", "rows"), [("<b>a|b.jsonl", "1,000")]),
        Sheet("Rejects", ("source", "reason"), []),
    ]
    text = _parts(replace(facts, sheets=sheets))["data"]
    assert "| &lt;b&gt;a\\|b\\.jsonl | 1,000 |" in text
    assert text.endswith("none")


def test_metrics_have_a_curve_and_a_row_each(facts: Facts) -> None:
    rows = [
        {"stage": "rl", "step": step, "name": name, "value": value}
        for name in ("actor/pg_loss", "critic/score/mean")
        for step, value in enumerate([0.5, None, 2.0])
    ]
    text = _parts(replace(facts, metrics={"rl": pl.DataFrame(rows)}))["metrics-rl"]
    assert "](/reports/a/rl-curves.png)" in text
    assert text.index("`critic/score/mean`") < text.index("`actor/pg_loss`")
    assert "| `actor/pg_loss` | 2 | 0.5 | 2 | 0.5 | 2 |" in text
    assert "| `critic/score/mean` |" in text


def test_diagnostics_name_trouble_remedy_and_what_is_silent(facts: Facts) -> None:
    found = Finding("truncation", "warning", 12, None, 0.4, "40% are cut off", "raise it")
    checks = [("truncation", 0.3), ("no_answers", 0.5)]
    text = _parts(replace(facts, findings=[found], checks=checks))["diagnostics"]
    assert "### `truncation`: warning\n\n40% are cut off\n" in text
    assert "* iterations: 12 to now, or the end\n* remedy: raise it\n" in text
    assert "`no_answers` (0.5)." in text
    assert "truncation` (0.3)" not in text
    assert "truncation` (0.3)" in _parts(replace(facts, checks=checks))["diagnostics"]


def test_reward_hacking_is_a_gap_that_grows(facts: Facts) -> None:
    """A rising reward alone looks like success."""
    rows = [
        {"stage": "rl", "step": step, "name": name, "value": value}
        for name, values in {
            "critic/score/mean": [-1.0, 0.0, 1.0, 3.0],
            "critic/accuracy": [0.5, 0.7, 0.9, 0.6],
        }.items()
        for step, value in enumerate(values, start=1)
    ]
    curves = proxy_and_truth(pl.DataFrame(rows))
    assert curves is not None
    assert curves["gap"].to_list() == pytest.approx([0.0, -0.25, -0.5, 0.75])
    assert proxy_and_truth(pl.DataFrame(rows[:4])) is None
    reward = facts.recipe.reward
    learnt = reward.functions[0].model_copy(update={"name": "reward_model", "weight": 1.0})
    by_model = reward.model_copy(update={"functions": (learnt,)})
    recipe = facts.recipe.model_copy(update={"reward": by_model})
    text = _parts(replace(facts, recipe=recipe, metrics={"rl": pl.DataFrame(rows)}))
    assert "](/reports/a/proxy-vs-true.png)" in text["proxy-vs-true"]


def test_evaluation_has_a_column_per_checkpoint(facts: Facts) -> None:
    figures = {
        "greedy/aborted": (0.0, 0.0, 0.0),
        "greedy/unscored": (0.0, 0.0, 0.1),
        "greedy/acc": (0.02, 0.6, 0.98),
        "greedy/response_length/mean": (8.0, 7.5, 6.0),
    }
    rows = [
        {
            "checkpoint": checkpoint,
            "data_source": "arithmetic",
            "subset": "test",
            "metric": metric,
            "value": value,
            "ci_low": value - 0.01,
            "ci_high": value + 0.01,
            "num_prompts": 512,
            "num_samples": 1,
        }
        for metric, values in figures.items()
        for checkpoint, value in zip(("base", "sft", "rl"), values, strict=True)
    ]
    text = _parts(replace(facts, eval_results=pl.DataFrame(rows)))["evaluation"]
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index("### arithmetic: 512 prompts")
    assert lines[start + 2 : start + 6] == [
        "| metric | base | sft | rl |",
        "|:-|:-|:-|:-|",
        "| greedy/acc | **0.020** 0.010 to 0.030"
        " | **0.600** 0.590 to 0.610 | **0.980** 0.970 to 0.990 |",
        "",
    ], "accuracy comes first"
    others = lines.index("### Scores, lengths, failures")
    assert lines[others + 2 : others + 6] == [
        "| data | metric | base | sft | rl |",
        "|:-|:-|:-|:-|:-|",
        "| arithmetic | greedy/unscored | 0.000 | 0.000 | 0.100 |",
        r"| arithmetic | greedy/response\_length/mean | 8 | 7.5 | 6 |",
    ]
    assert "0 of every checkpoint: greedy/aborted." in text


def test_completions_are_shown_as_text_only(facts: Facts) -> None:
    """A completion that ends its code block could run script on the page of who reads it."""
    rows = [
        _completion("same", "sft", "ok"),
        _completion("same", "rl", "ok"),
        _completion("corrected", "sft", "wrong"),
        _completion("corrected", "rl", "ok"),
    ]
    evaluate = facts.recipe.evaluate.model_copy(update={"completions_shown": 1})
    recipe = facts.recipe.model_copy(update={"evaluate": evaluate})
    text = _parts(replace(facts, recipe=recipe, completions=pl.DataFrame(rows)))["completions"]
    assert "What is corrected?" in text, "the prompt on which the checkpoints differ comes first"
    assert "What is same?" not in text
    assert "\x1b" not in text
    assert "<" not in text
    assert not [line for line in text.splitlines() if line.startswith(("```", "    "))]
    assert "&lt;/code&gt;&lt;script&gt;" in text, "the answer is there, and wraps"
    assert r"tool\: 42 &lt;b&gt;" in text, "and so is what the environment said"


def test_the_export_is_a_path_and_no_link(facts: Facts) -> None:
    """A browser opens no file of the machine that it runs on from a page of a server."""
    text = _parts(replace(facts, export="/data/my`export/abc"))["export"]
    assert "`` /data/my`export/abc ``" in text
    assert "](" not in text
    assert "file:" not in text
