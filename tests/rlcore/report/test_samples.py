"""Answers that a judge compared are shown as text, those that were lost in front."""

import polars as pl

from rlcore.report.samples import pairs_compared


def test_lost_pairs_come_first_and_unread_ones_not_at_all() -> None:
    pairs = pl.DataFrame(
        {
            "checkpoint": ["rl"] * 4,
            "against": ["sft"] * 4,
            "prompt": ["p0", "p1", "p2", "p3"],
            "data_source": ["s"] * 4,
            "answer": ["<b>0</b>", "1", "2", "3"],
            "other": ["a", "b", "c", "3"],
            "before": [1.0, 0.0, 1.0, 0.5],
            "after": [1.0, 0.0, 0.0, 0.5],
            "asked": [True, True, True, False],
        }
    )
    shown = pairs_compared(pairs, 3)
    assert [asked.prompt for asked in shown] == ["p1", "p2", "p0"]
    assert [(a.by, a.response, a.score) for a in shown[0].answers] == [
        ("rl", "1", 0.0),
        ("sft", "b", 1.0),
    ]
    assert {a.note for a in shown[1].answers} == {"the judge contradicts itself"}
    assert len(pairs_compared(pairs, 1)) == 1
