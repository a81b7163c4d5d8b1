"""Workers of a first run find compiled what they import."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from flows import precompile
from flows.places import ROOT

# Beside other tests an idle core may not come for minutes.
PRECOMPILE = """
from flows import precompile, services
services.step_back = lambda niceness: None
services.step_aside = lambda: None
precompile.main()
"""
SITE = "site-packages"
START = """
from rlcore.cluster.targets import import_all
from rlcore.engines.registry import ENGINES
from rlcore.workers.workers import LEARNER
import_all(LEARNER), import_all(ENGINES["transformers"].target)
"""


def _caches(folder: Path) -> dict[str, str]:
    """An environment that keeps what is compiled in ``folder`` only."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    loops = {"NUMBA_CACHE_DIR": str(folder / "loops")}  # compiled ones import less of numba
    return kept | loops | {"PYTHONPYCACHEPREFIX": str(folder)}


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.suffix == ".pyc"}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_workers_import_is_compiled_before(tmp_path: Path) -> None:
    """Each would compile for tens of seconds, in the order of its imports, while a user waits."""
    for code in (PRECOMPILE, START):
        before = _files(tmp_path)
        run = [sys.executable, "-c", code]
        subprocess.run(run, cwd=ROOT, env=_caches(tmp_path), check=True, timeout=300)
    assert len(before) > 2000
    left = {path.parent.name for path in _files(tmp_path) - before if SITE in path.parts}
    assert left <= {"colorama"}, "of which Ray, imported first, brings its own"


def test_it_is_needed_in_a_new_environment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    # Of what is imported already, the place of its bytecode is known from before.
    monkeypatch.delitem(sys.modules, precompile.FIRST[0], raising=False)
    assert precompile.is_needed()
    spec = find_spec(precompile.FIRST[0])
    assert spec is not None
    assert spec.cached is not None
    Path(spec.cached).parent.mkdir(parents=True)
    Path(spec.cached).touch()
    assert not precompile.is_needed()


def test_it_is_not_started_where_nothing_would_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "py"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    precompile.start(tmp_path)
    assert not (tmp_path / f"{precompile.NAME}.json").exists()
