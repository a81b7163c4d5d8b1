"""Which tests may be skipped, and one real Prefect server for all of them, separate from the
user's.

Prefect reads its settings when it is first imported, so they are set here, before any test module.

``make test`` runs three processes: what needs a Prefect server in the first two, each of which
starts its own, the other directories in whichever is free, each as a whole, so that its shared
fixtures are made once.
"""

import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import services
from flows.local import client_settings, start_server, wait_healthy
from tests import kernel
from tests.cluster import machines
from tests.processes import PROCESS, starts_ahead

HOME = Path(tempfile.mkdtemp(prefix="rlp-prefect-"))
PORT = services.free_port()
REPORTS = HOME / "reports"  # what the server serves below /reports
for name in [name for name in os.environ if name.startswith("PREFECT_")]:
    del os.environ[name]
os.environ.update(client_settings(HOME, PORT))
os.environ["PREFECT_LOGGING_LEVEL"] = "WARNING"
os.environ["WANDB_MODE"] = "offline"


MAY_SKIP = pytest.StashKey[bool]()
SLACK = 6  # of deadlines, which are those of an idle machine
REFUSED = "the kernel refuses namespaces"
ONE_MACHINE = "a second machine is refused"
TESTS = Path(__file__).parent
WITH_SERVER = ("flows", "tasks")  # their directories
LONG = ("rlcore/rl", "rlcore/learner")  # of the others: what begins last is waited for
if PROCESS is not None:
    # Spinning threads of one process slow down the computing threads of the other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute the tests by shared fixtures: tests/flows is one unit, what else uses a server is
    another, and each other directory is one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByDirectory(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = Path(nodeid.partition("::")[0]).parent
            shared = _needs_server(folder) and folder.parts != ("tests", "flows")
            return "server" if shared else str(folder)

        def schedule(self) -> None:
            # Units are handed out in this order, and processes come in the order of their start.
            by_name = sorted(self.assigned_work.items(), key=lambda node: node[0].gateway.id)
            self.assigned_work = dict(by_name)
            super().schedule()

    return ByDirectory(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest units first, skip what may be skipped, and give each a deadline that ends
    what hangs and not what is slow on a machine with much else to do: ``SLACK`` times its own."""
    items.sort(key=lambda item: _turn(item.path.parent.relative_to(TESTS.parent)))
    _mark_skips(items)
    for item in items:
        own = item.get_closest_marker("timeout")
        idle_s = float(own.args[0] if own else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(SLACK * idle_s), append=False)


def _turn(folder: Path) -> int:
    """Return the turn of ``folder``, relative to the project: its place among the units."""
    if _needs_server(folder):
        return 0
    return 1 if "/".join(folder.parts[1:]) in LONG else 2


def _needs_server(folder: Path) -> bool:
    """Return whether tests of ``folder``, relative to the project, may use the Prefect server."""
    return len(folder.parts) > 1 and folder.parts[1] in WITH_SERVER


def _mark_skips(items: list[pytest.Item]) -> None:
    """Skip ``gpu`` without a CUDA device (torch is imported only for such tests), and ``shared``
    without its file; ``namespaces`` where the kernel refuses them, and ``machines``."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch

        for item in marked:
            item.stash[MAY_SKIP] = True
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    for item in items:
        if (mark := item.get_closest_marker("namespaces")) and (why := kernel.refusal(*mark.args)):
            item.stash[MAY_SKIP] = True
            item.add_marker(pytest.mark.skip(reason=f"{REFUSED} ({why})"))
        if item.get_closest_marker("machines") and (why := machines.refusal()):
            item.stash[MAY_SKIP] = True
            item.add_marker(pytest.mark.skip(reason=f"{ONE_MACHINE} ({why})"))
        missing = [m.args[0] for m in item.iter_markers("shared") if not m.args[0].exists()]
        if missing:
            item.stash[MAY_SKIP] = True
            item.add_marker(pytest.mark.skip(reason=f"{missing[0]} is not there"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the server while the first tests run, and keep what the collection imported out of the
    garbage collector's rounds, which a learner triggers often."""
    if session.config.option.collectonly:
        return
    needed = any("prefect_server" in getattr(item, "fixturenames", ()) for item in session.items)
    if needed and starts_ahead():
        start_server(HOME, PORT, REPORTS)
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """End the server, whether or not a test came to use it."""
    gc.unfreeze()
    services.stop(HOME, "server")
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    """A skip that no mark explains is a failure: a test that never runs proves nothing."""
    report = yield
    if report.skipped and not item.stash.get(MAY_SKIP, False):
        return _failed(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, Any]:
    """The same for a module that skips itself."""
    report = yield
    return _failed(report) if report.skipped else report


def _failed(report: Any) -> Any:
    report.outcome = "failed"
    report.longrepr = (
        f"{report.longrepr}: only tests marked gpu, shared, namespaces or machines may be skipped"
    )
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that a machine with other rights would run."""
    for refused in (REFUSED, ONE_MACHINE):
        every = terminalreporter.stats.get("skipped", ())
        skipped = [one for one in every if refused in str(one.longrepr)]
        if skipped:
            terminalreporter.section(f"not run, as {refused} here")
            for one in skipped:
                terminalreporter.line(one.nodeid)


@pytest.fixture(autouse=True)
def settings_of_the_next_test() -> Iterator[None]:
    """A command that a test runs in this process may set Prefect's settings to those of a server
    that it finds, such as one that is up in the checkout; they end with the test."""
    before = {name: value for name, value in os.environ.items() if name.startswith("PREFECT_")}
    yield
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        if name not in before:
            del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[str]:
    """The API URL of a running server; flows called in the test report to it."""
    server = start_server(HOME, PORT, REPORTS)
    assert server.port == PORT, f"port {PORT} was taken before the server started"
    wait_healthy(HOME, server)
    yield os.environ["PREFECT_API_URL"]
    from prefect.logging.handlers import APILogHandler

    APILogHandler().flush()  # queued events would log that the server does not answer
