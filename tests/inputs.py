"""Inputs next to the checkout, and the mark of a test that reads them.

A marked test is skipped only where the file is missing (see ``conftest``).
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("SHARED_DIR") or ROOT.parent / "shared")
GSM8K = Path(os.environ.get("GSM8K_DIR") or SHARED / "data" / "gsm8k")


def reads(path: Path) -> pytest.MarkDecorator:
    """Mark a test that needs ``path``, of ``SHARED`` or ``GSM8K``."""
    return pytest.mark.shared(path)
