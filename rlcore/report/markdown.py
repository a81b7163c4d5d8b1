"""Text of whoever wrote it on a page in Markdown, which shows it literally."""

import re

from rlcore.redaction import redact
from rlcore.report.text import one_line

SHOWN_CHARACTERS = 1200  # of one prompt or completion
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
    cut = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]} ..."
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
