"""What passes between a learner and its callers."""

import pickle

import numpy as np

from rlcore.learner.spec import TokenScores


def test_scores_arrive_as_they_were_sent() -> None:
    rows = [np.array([0.0, np.nan, -2.5], np.float32), np.array([-1.0], np.float32)]
    for scores in (TokenScores(rows, rows[::-1], []), TokenScores([], [], [])):
        buffers: list[pickle.PickleBuffer] = []
        sent = pickle.dumps(scores, protocol=5, buffer_callback=buffers.append)
        found = pickle.loads(sent, buffers=buffers)
        for ours, theirs in zip(vars(found).values(), vars(scores).values(), strict=True):
            assert [row.tobytes() for row in ours] == [row.tobytes() for row in theirs]
        assert len(buffers) <= 6, "two per field, however many rows"
