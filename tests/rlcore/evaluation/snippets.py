"""Runs the snippet of an export's card."""

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest


def run_snippet(directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the only code block of ``directory``'s card in ``directory``; return what it prints."""
    (code,) = (directory / "README.md").read_text().split("\n```python\n")[1:]
    code = code.split("\n```\n")[0]
    monkeypatch.chdir(directory)
    namespace: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "README.md", "exec"), namespace)
    assert printed.getvalue() == f"{namespace['answer']}\n"
    return namespace["answer"]
