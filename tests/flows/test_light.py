"""Prefect without pandas, which costs its server and its worker as much time as all the rest."""

import subprocess
import sys

import pytest

from flows.places import ROOT

IMPORTS = """
import sys
from flows.light import import_prefect
{first}import_prefect()
import prefect.server.api.server, prefect.workers.process
print("pandas" in sys.modules)
import pandas
print(pandas.DataFrame({{"a": [1]}}).a.sum())
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("first", "has_pandas"), [("", False), ("import pandas; ", True)])
def test_prefect_is_imported_without_pandas_which_can_be_imported_later(
    first: str, has_pandas: bool
) -> None:
    code = IMPORTS.format(first=first)
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == [str(has_pandas), "1"]


@pytest.mark.timeout(120)
def test_the_program_is_prefects() -> None:
    theirs, ours = (
        subprocess.run(
            [sys.executable, "-m", module, "worker", "start", "--no-such-option"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        for module in ("prefect", "flows.light")
    )
    assert ours.returncode != 0
    assert (ours.returncode, ours.stdout, ours.stderr) == (
        theirs.returncode,
        theirs.stdout,
        theirs.stderr,
    )
    assert "--no-such-option" in ours.stdout + ours.stderr
