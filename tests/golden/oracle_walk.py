"""Makes ``walk.json`` again: one PPO iteration on the answers ``#### 72`` and ``#### 71``, in plain
arithmetic on Python's floats, with nothing of this project or of a tensor library in it.

Reward on the last token less k1 to the reference; GAE, whitened over all tokens; the clipped
objective with the dual clip, as a mean over tokens; half the squared error of the critic (the
papers: docs/understand/algorithms.md). Run from the root: python tests/golden/oracle_walk.py
"""

import json
import math
from pathlib import Path
from typing import Any

TEXTS = [["####", " ", "7", "2", "<eos>"], ["####", " ", "7", "1", "<eos>"]]
SCORES = [1.0, 0.0]
OLD = [[-0.1, -0.2, -1.2, -0.9, -0.05], [-0.1, -0.2, -1.2, -1.6, -0.05]]
NEW = [[-0.08, -0.2, -0.95, -0.5, -0.04], [-0.12, -0.2, -0.95, -2.4, -0.06]]
REF = [[-0.12, -0.18, -1.3, -1.1, -0.05], [-0.12, -0.18, -1.3, -1.4, -0.05]]
VALUES = [[0.3, 0.35, 0.4, 0.6, 0.9], [0.3, 0.35, 0.4, 0.5, 0.2]]
KL_COEF, GAMMA, LAM, CLIP, DUAL = 0.01, 1.0, 0.95, 0.2, 3.0


def answer(row: int) -> dict[str, Any]:
    """Return rewards, raw advantages and returns of one answer."""
    rewards = [-KL_COEF * (old - ref) for old, ref in zip(OLD[row], REF[row], strict=True)]
    rewards[-1] += SCORES[row]
    advantages, advantage, after = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(VALUES[row]), strict=True):
        advantage = reward + GAMMA * after - value + GAMMA * LAM * advantage
        advantages.insert(0, advantage)
        after = value
    returns = [a + v for a, v in zip(advantages, VALUES[row], strict=True)]
    return {"reward": rewards, "raw": advantages, "returns": returns}


def main() -> None:
    rows = [answer(0), answer(1)]
    flat = [a for row in rows for a in row["raw"]]
    mean = sum(flat) / len(flat)
    deviation = math.sqrt(sum((a - mean) ** 2 for a in flat) / (len(flat) - 1) + 1e-8)
    for number, row in enumerate(rows):
        row["advantage"] = [(a - mean) / deviation for a in row.pop("raw")]
        pairs = zip(NEW[number], OLD[number], strict=True)
        row["ratio"] = [math.exp(new - old) for new, old in pairs]
        row["clip"], row["loss"], row["value_loss"] = [], [], []
        for ratio, a in zip(row["ratio"], row["advantage"], strict=True):
            plain, bounded = -a * ratio, -a * min(max(ratio, 1 - CLIP), 1 + CLIP)
            loss = max(plain, bounded)
            dual = a < 0 and loss > -a * DUAL
            low_high = "low" if a < 0 else "high"
            row["clip"].append("dual" if dual else low_high if bounded > plain else "")
            row["loss"].append((min(loss, -a * DUAL) if dual else loss) / len(flat))
        for value, target in zip(VALUES[number], row["returns"], strict=True):
            row["value_loss"].append(0.5 * (value - target) ** 2 / len(flat))
    given = {"texts": TEXTS, "scores": SCORES, "old": OLD, "new": NEW, "ref": REF, "values": VALUES}
    target = Path(__file__).with_name("walk.json")
    target.write_text(json.dumps({"given": given, "expected": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
