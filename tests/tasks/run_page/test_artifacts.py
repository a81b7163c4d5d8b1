"""What a run shows on its page: everything is there, and nothing a model wrote becomes markup."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from rlcore.data.datasheet import Sheet
from rlcore.diagnostics.watch import Finding
from rlcore.results.summary import proxy_and_truth
from tasks.run_page.artifacts import (
    publish_completions,
    publish_datasheet,
    publish_diagnostics,
    publish_evaluation,
    publish_export,
    publish_lineage,
    publish_metrics,
    publish_proxy,
)
from tasks.run_page.board import Board
from tests.rlcore.report.made import MadeRun

pytestmark = pytest.mark.timeout(120)

HOSTILE = "```\n</code><script>alert(1)</script>\n\x1b[31m[x](javascript:alert(1))"


def _published(publish: Callable[[Board], object]) -> dict[str, Any]:
    """Return the artifacts, data by key without the recipe's name, of a flow run that publishes."""

    @flow(name="artifacts-test")
    def run() -> str:
        from prefect.runtime import flow_run

        with Board(UUID(str(flow_run.id)), "small_1").open() as board:
            publish(board)
        return str(flow_run.id)

    flow_run_id = run()
    with get_client(sync_client=True) as client:
        only = ArtifactFilter(
            flow_run_id=ArtifactFilterFlowRunId.model_validate({"any_": [flow_run_id]})
        )
        found = client.read_artifacts(artifact_filter=only)
    return {str(artifact.key).removeprefix("small-1-"): artifact.data for artifact in found}


def _check_picture(text: str, path: Path) -> None:
    """Check that the page shows a picture of a report folder, and nothing else is there."""
    (address,) = re.findall(r"]\((/reports/[^)]+)\)", text)
    assert re.fullmatch(rf"/reports/{path.parent.name}/{path.name}\?v=[0-9a-f]{{12}}", address)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(path.parent.iterdir()) == [path]


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
        "turns": [] if uid == "same" else TURNS,
    }


def test_lineage_has_a_picture_and_the_report_once_it_is_written(
    prefect_server: str, tmp_path: Path
) -> None:
    made = MadeRun(tmp_path / "runs")
    made.prepare()
    made.stage("rl", "policy", made.key)
    folder = tmp_path / "reports-0"
    folder.mkdir()
    key = "lineage"
    text = _published(lambda board: publish_lineage(board, made.open(), folder))[key]
    _check_picture(text, folder / "lineage.png")
    assert "| rl | not ended | policy" in text
    (folder / "index.html").write_text("a report")
    text = _published(lambda board: publish_lineage(board, made.open(), folder))[key]
    assert "](/reports/reports-0/index.html)" in text


def test_the_datasheet_is_on_the_page_as_text(prefect_server: str) -> None:
    """Names of files and sources are a user's: none of them may become markup."""
    sheets = [
        Sheet("Rows read", ("source", "rows"), [("<b>a|b.jsonl", "1,000")]),
        Sheet("Rejects", ("source", "reason"), []),
    ]
    text = _published(lambda board: publish_datasheet(board, sheets))["data"]
    assert "| &lt;b&gt;a\\|b\\.jsonl | 1,000 |" in text
    assert text.endswith("none")


def test_metrics_have_a_curve_and_a_row_each(prefect_server: str, tmp_path: Path) -> None:
    rows = [
        {"stage": "rl", "step": step, "name": name, "value": value}
        for name in ("actor/pg_loss", "critic/score/mean")
        for step, value in enumerate([0.5, None, 2.0])
    ]
    frame = pl.DataFrame(rows)
    text = _published(lambda board: publish_metrics(board, "rl", frame, tmp_path))["metrics-rl"]
    _check_picture(text, tmp_path / "rl-curves.png")
    assert text.index("`critic/score/mean`") < text.index("`actor/pg_loss`")
    assert "| `actor/pg_loss` | 2 | 0.5 | 2 | 0.5 | 2 |" in text
    assert "| `critic/score/mean` |" in text


def test_diagnostics_name_trouble_remedy_and_what_is_silent(prefect_server: str) -> None:
    found = Finding("truncation", "warning", 12, None, 0.4, "40% are cut off", "raise it")
    checks = [("truncation", 0.3), ("no_answers", 0.5)]
    text = _published(lambda board: publish_diagnostics(board, [found], checks))["diagnostics"]
    assert "### `truncation`: warning\n\n40% are cut off\n" in text
    assert "* iterations: 12 to now, or the end\n* remedy: raise it\n" in text
    assert "`no_answers` (0.5)." in text
    assert "truncation` (0.3)" not in text
    quiet = _published(lambda board: publish_diagnostics(board, [], checks))["diagnostics"]
    assert "truncation` (0.3)" in quiet


def test_reward_hacking_is_a_gap_that_grows(prefect_server: str, tmp_path: Path) -> None:
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
    text = _published(lambda board: publish_proxy(board, curves, tmp_path))["proxy-vs-true"]
    _check_picture(text, tmp_path / "proxy-vs-true.png")


def test_evaluation_has_a_column_per_checkpoint(prefect_server: str) -> None:
    figures = {
        "greedy/aborted": (0.0, 0.0, 0.0),
        "greedy/unscored": (0.0, 0.0, 0.1),
        "greedy/acc": (0.02, 0.6, 0.98),
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
    frame = pl.DataFrame(rows)
    text = _published(lambda board: publish_evaluation(board, frame))["evaluation"]
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert table[0] == "| data | metric | base | sft | rl | prompts / samples |"
    assert table[2] == (
        "| arithmetic, test | greedy/acc | **0.020** 0.010 to 0.030"
        " | **0.600** 0.590 to 0.610 | **0.980** 0.970 to 0.990 | 512 / 1 |"
    ), "accuracy comes first"
    assert len(table) == 4
    assert "0 of every checkpoint: greedy/aborted." in text


def test_completions_are_shown_as_text_only(prefect_server: str) -> None:
    """A completion that ends its code block could run script on the page of who reads it."""
    rows = [
        _completion("same", "sft", "ok"),
        _completion("same", "rl", "ok"),
        _completion("corrected", "sft", "wrong"),
        _completion("corrected", "rl", "ok"),
    ]
    frame = pl.DataFrame(rows)
    text = _published(lambda board: publish_completions(board, frame, limit=1))["completions"]
    assert "What is corrected?" in text, "the prompt on which the checkpoints differ comes first"
    assert "What is same?" not in text
    assert "\x1b" not in text
    assert "<" not in text
    assert not [line for line in text.splitlines() if line.startswith(("```", "    "))]
    assert "&lt;/code&gt;&lt;script&gt;" in text, "the answer is there, and wraps"
    assert r"tool\: 42 &lt;b&gt;" in text, "and so is what the environment said"


def test_the_export_is_a_path_and_no_link(prefect_server: str) -> None:
    """A browser opens no file of the machine that it runs on from a page of a server."""
    text = _published(lambda board: publish_export(board, "/data/my`export/abc"))["export"]
    assert "`` /data/my`export/abc ``" in text
    assert "](" not in text
    assert "file:" not in text
