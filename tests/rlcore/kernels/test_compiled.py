"""What numba compiles is kept until a file of the package changes, and a warning says where it
cannot be kept."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.kernels import loops


def _imported_from_a_copy(folder: Path) -> tuple[list[str], str]:
    """What a user without a home sees who imports the loops of the copy in ``folder``."""
    code = "import rlcore.kernels.loops as loops; print(loops.__file__, loops.draw.address > 0)"
    environment = os.environ | {"HOME": os.devnull, "PYTHONPATH": str(folder)}
    environment.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-B", "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    return done.stdout.split(), done.stderr


def _copied(folder: Path) -> Path:
    package = Path(str(loops.__file__)).parents[1]
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, folder / "rlcore", ignore=without)
    return folder / "rlcore/kernels/__pycache__"


def _kept(cache: Path) -> set[str]:
    return {file.name for file in cache.glob("*.nbi")}


@pytest.mark.slow
def test_loops_are_compiled_again_when_a_file_beside_them_changes(tmp_path: Path) -> None:
    """Though time and size stay, as in the layers of an image whose times are all one."""
    cache = _copied(tmp_path)
    _imported_from_a_copy(tmp_path)
    first = _kept(cache)
    _imported_from_a_copy(tmp_path)
    assert first
    assert _kept(cache) == first
    changed = cache.parent / "tiles.py"
    times = changed.stat()
    changed.write_text(changed.read_text().replace("QUERIES = 8", "QUERIES = 4"))
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    _imported_from_a_copy(tmp_path)
    assert len(_kept(cache)) == 2 * len(first)


def test_loops_run_and_say_so_where_nothing_can_be_kept(tmp_path: Path) -> None:
    """An installation that cannot be written to, of a user without a home."""
    _copied(tmp_path).touch()  # no folder, whoever the user is
    out, said = _imported_from_a_copy(tmp_path)
    assert out == [str(tmp_path / "rlcore/kernels/loops.py"), "True"], said
    assert said.count("compiled anew in each process") == 1
    assert "NUMBA_CACHE_DIR" in said


@pytest.mark.slow
def test_loops_run_and_say_so_where_what_was_kept_is_torn(tmp_path: Path) -> None:
    """As a power failure leaves files that were just written."""
    cache = _copied(tmp_path)
    out, said = _imported_from_a_copy(tmp_path)
    assert (out[1:], said) == (["True"], "")
    for place, torn in enumerate(sorted(cache.glob("*.nb[ic]"))):
        torn.write_bytes(torn.read_bytes()[: 40 * (place % 3)])
    out, said = _imported_from_a_copy(tmp_path)
    assert out[1:] == ["True"], said
    assert said.count("compiled anew in each process") == 1
    assert str(cache) in said
