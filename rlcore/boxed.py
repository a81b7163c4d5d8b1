r"""The last ``\boxed{}`` of a text: how mathematical solutions mark their answer."""

import re

_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|[{}]")
_BARE_BOX = re.compile(
    r"\\(?:boxed|fbox)\s+([^\s{}$\\][^{}$\\]*)\$"
)  # \boxed 7$, in a few MATH solutions


def last_boxed(text: str) -> str | None:
    r"""Return the content of the complete ``\boxed{...}`` that begins last; None without one.

    ``\fbox{...}`` counts, and so does ``\boxed 7$``, up to the dollar sign, as in verl
    (verl/utils/reward_score/math_reward.py). Braces are balanced. The time is linear in the length
    of ``text``.

    >>> last_boxed(r"\boxed{1}, no: \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    last: tuple[int, int] | None = None
    for bare in _BARE_BOX.finditer(text):
        last = bare.span(1)
    depth, boxes = 0, list[tuple[int, int]]()  # open ones: the depth and the place inside
    for brace in _BRACE.finditer(text):
        if brace[0] != "}":
            depth += 1
            if brace["box"]:
                boxes.append((depth, brace.end()))
        elif depth:
            if boxes and boxes[-1][0] == depth:
                _, begin = boxes.pop()
                if last is None or begin > last[0]:
                    last = begin, brace.start()
            depth -= 1
    return None if last is None else text[slice(*last)].strip()
