"""The generated pages of commands and findings are current and complete."""

import argparse
import re
from collections.abc import Iterator

from flows.cli import create_parser
from flows.reference_pages import COMMANDS, FINDINGS, commands, findings
from rlcore.diagnostics.memory import OUT_OF_MEMORY
from rlcore.diagnostics.watch import CHECKS


def _names(parser: argparse.ArgumentParser, path: str) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield f"{path}{name}"
                yield from _names(child, f"{path}{name} ")


def test_the_pages_are_those_of_the_code() -> None:
    message = "commands or checks have changed: run `make docs`"
    assert COMMANDS.read_text(encoding="utf-8") == commands(), message
    assert FINDINGS.read_text(encoding="utf-8") == findings(), message


def test_every_command_and_every_finding_has_an_anchor() -> None:
    """A link to one must work from a page, a report or an error."""
    listed = re.findall(r"(?m)^## (.+)$", commands())
    assert listed == list(_names(create_parser(), ""))
    named = re.findall(r"(?m)^## (\w+)$", findings())
    assert named == [*(check.name for check in CHECKS), OUT_OF_MEMORY]
    assert len(named) == len(set(named))


def test_no_text_of_a_finding_has_an_open_placeholder() -> None:
    assert not re.search(r"[{}]|\b0\.00\b", findings().split("\n## ", 1)[1])
