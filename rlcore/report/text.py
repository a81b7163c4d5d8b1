"""Figures in words of people, and text that a model, a data set or a reward wrote, made fit to
be shown, also in Markdown; HTML is escaped by the template."""

import re
import unicodedata

from rlcore.recipes.redaction import redact

SHOWN_CHARACTERS = 2000  # of one prompt or response
TAIL = 500  # of these, from its end: answers are there
# Phases of an RL iteration, by the metric of their time: timing_s/<name>.
PHASES = {
    "gen": "rollout",
    "reward": "reward",
    "adv": "advantage",
    "update_actor": "update",
    "update_critic": "critic update",
    "sync": "sync",
    "testing": "validation",
    "save_checkpoint": "checkpoint",
    "outside": "outside the phases",
}
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_KEPT = frozenset("\n\t\u200c\u200d")  # joiners are part of words and of emoji
# Controls, formatting (which may reverse a line), surrogates, line and paragraph separators, ...
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def clean(text: str) -> str:
    """Return ``text`` with a replacement character for each one that would not be seen."""
    if text.isprintable():
        return text
    return "".join(
        REPLACEMENT if c not in _KEPT and unicodedata.category(c) in _HIDDEN else c for c in text
    )


def one_line(text: str) -> str:
    """Return ``text`` on one line, a replacement character for each one that would not be seen."""
    return "".join(c if c.isprintable() else REPLACEMENT for c in " ".join(text.split()))


def shortened(text: str, most: int = SHOWN_CHARACTERS, tail: int = TAIL) -> str:
    """Return about ``most`` characters of ``text``, without secrets: its begin and its end."""
    text = redact(text)
    if len(text) <= most:
        return text
    left_out = f"\n… {len(text) - most:,} characters left out …\n"
    return text[: most - tail] + left_out + text[len(text) - tail :]


def cut(text: str, most: int) -> str:
    """Return at most ``most`` characters of ``text``, without secrets: its begin."""
    text = redact(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def number(value: float) -> str:
    """Return a figure with about four digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


SHOWN_IN_MARKDOWN = 1200  # of one prompt or completion
MARKDOWN_CHARACTERS = str.maketrans(
    {c: f"\\{c}" for c in r"\`*_{}[]()#+-.!|~$:@="} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
)


def plain(text: str) -> str:
    """Return text that Markdown shows literally, in one line, without control characters and
    secrets.

    >>> plain("a_b <c>")
    'a\\\\_b &lt;c&gt;'
    """
    return one_line(redact(text)).translate(MARKDOWN_CHARACTERS)


def quoted(text: str) -> str:
    """Return the beginning of a long text as a block quote, line by line, which wraps; nothing in
    the text is markup or ends the quote."""
    text = redact(text)  # before it is cut, perhaps within a secret
    cut = text if len(text) <= SHOWN_IN_MARKDOWN else f"{text[:SHOWN_IN_MARKDOWN]} ..."
    paragraphs: list[list[str]] = [[]]
    for line in cut.splitlines():
        indent = "\N{NO-BREAK SPACE}" * (len(line) - len(line.lstrip()))
        if line.strip():
            paragraphs[-1].append(f"> {indent}{plain(line)}")
        elif paragraphs[-1]:
            paragraphs.append([])
    shown = "\n>\n".join("\\\n".join(lines) for lines in paragraphs if lines)
    return f"{shown or '> *empty*'}\n"


def code(text: str) -> str:
    """Return one line of text as inline code, which no content can end.

    >>> code("/a`b")
    '`` /a`b ``'
    """
    line = one_line(redact(text))
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if longest else f"{fence}{line}{fence}"
