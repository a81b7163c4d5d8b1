"""What the agents said -> an answer, a verdict; None where it cannot be read."""

from dataclasses import dataclass

from rlcore.boxed import last_boxed
from schemas.outcomes import FinishReason

OPEN, CLOSE = "<answer>", "</answer>"
_BOX = "\\boxed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says of a solution: its ``report``, and ``accepts`` 0 or 1."""

    report: str
    accepts: int


def answer_in(text: str, form: str, reason: FinishReason) -> str | None:
    """Return the answer that the last turn ``text`` of the policy gives.

    ``form`` "tag": the text ends with ``<answer>...</answer>``, which holds something. "text": the
    policy ended the text by itself (``reason``), and it is the answer.

    >>> answer_in("6 * 7 <answer> 42 </answer>", "tag", FinishReason.STOP)
    '42'
    """
    text = text.strip()
    if form == "text":
        return text if text and reason == FinishReason.STOP else None
    if not text.endswith(CLOSE):
        return None
    _, opened, answer = text.removesuffix(CLOSE).rpartition(OPEN)
    if not opened or CLOSE in answer:
        return None
    return answer.strip() or None


def verdict_in(text: str) -> Verdict | None:
    r"""Return the verdict of a verifier's ``text``: its last ``\boxed{0}`` or ``\boxed{1}``, and
    the report before it.

    >>> verdict_in("The sum is wrong. \\boxed{0}")
    Verdict(report='The sum is wrong.', accepts=0)
    """
    report, box, rest = text.rpartition(_BOX)
    value = last_boxed(box + rest) if box else None
    return Verdict(report.strip(), int(value)) if value in ("0", "1") else None
