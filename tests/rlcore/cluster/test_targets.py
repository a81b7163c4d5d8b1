"""A worker's process imports its class by name, and what the class's constructor would import."""

import gc
import sys
from pathlib import Path

import pytest

from rlcore.cluster.targets import class_of, import_all


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "of_a_worker.py").write_text("class Worker:\n    IMPORTS = ('imported_late',)\n")
    (tmp_path / "imported_late.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("of_a_worker", "imported_late"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return "of_a_worker:Worker"


def test_the_class_alone_and_with_its_late_imports(target: str) -> None:
    found = class_of(target)
    assert (found.__module__, found.__name__) == ("of_a_worker", "Worker")
    assert "imported_late" not in sys.modules
    import_all(target)
    assert "imported_late" in sys.modules


def test_a_class_without_late_imports() -> None:
    import_all(f"{__name__}:Plain")


def test_garbage_is_collected_again_after_imports_that_failed(tmp_path: Path, target: str) -> None:
    (tmp_path / "imported_late.py").write_text("import gc\nassert gc.isenabled()\n")
    with pytest.raises(AssertionError):
        import_all(target)
    assert gc.isenabled()


class Plain:
    """It lists none."""
