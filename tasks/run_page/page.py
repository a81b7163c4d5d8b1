"""What is on a run's page, from the run's records alone, and its publishing from a thread after
each stage and validation. A hook of the flow, ``show_end``, completes the page of a run whose
process is gone.

The thread never delays or ends the run: it looks at the store as it is when it gets to it, so of
several refreshes the last one counts, and its first error is logged and the run continues.
"""

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import UUID

import polars as pl
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.client.schemas.objects import StateType
from prefect.logging import get_logger

from rlcore.recipes.redaction import redact
from rlcore.report.facts import Ending, gather
from rlcore.report.write import PageSection, parts, write_report
from rlcore.results.folders import RECIPE, REPORTS, report_folder, run_directory
from rlcore.results.run import Run
from rlcore.store.artifacts import ArtifactStore
from schemas.recipe import Recipe

DIGEST_DIGITS = 12
RUNNING = Ending("running")
CANCELLED = (StateType.CANCELLING, StateType.CANCELLED)


def show(flow_run_id: UUID, recipe: str, sections: Iterable[PageSection]) -> None:
    """Show each section, without secrets, on the page of a flow run: as an artifact, published once
    and updated afterwards, also by another process, so that a run of fifty validations has as many
    as one of two.

    Keys begin with ``recipe``: a page of another recipe's run has others, and their versions do not
    mix. Raises what Prefect's client raises where the server refuses or does not answer.
    """
    only = ArtifactFilter.model_validate({"flow_run_id": {"any_": [flow_run_id]}})
    with get_client(sync_client=True) as client:
        there = {artifact.key: artifact for artifact in client.read_artifacts(artifact_filter=only)}
        for section in sections:
            key = artifact_key(recipe, section.key)
            text, about = redact(section.markdown), redact(section.description)
            if (known := there.get(key)) is None:
                made = ArtifactCreate(
                    key=key, type="markdown", data=text, description=about, flow_run_id=flow_run_id
                )
                client.create_artifact(made)
            elif (known.data, known.description) != (text, about):
                client.update_artifact(known.id, ArtifactUpdate(data=text, description=about))


def artifact_key(*words: str) -> str:
    """Return the key of an artifact: lower-case letters, digits and dashes.

    >>> artifact_key("quickstart_ppo", "metrics", "rl")
    'quickstart-ppo-metrics-rl'
    """
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


@dataclass
class View:
    """The page of the run in ``folder``; remembers the metrics that it has read."""

    folder: Path
    recipe: Recipe
    flow_run_id: UUID
    _frames: dict[str, pl.DataFrame] = field(default_factory=dict)  # of metrics, by key

    def publish(self, ending: Ending = RUNNING) -> None:
        """Publish what is recorded now; ``ending``: how the run ended, where it has.

        Raises ArtifactError where the store cannot be read, and what Prefect's client raises.
        """
        run = Run(self.folder, self.recipe, ArtifactStore(self.recipe.store))
        reports = report_folder(self.folder)
        facts = gather(run, ending, self._frames)
        sections = parts(facts, reports, partial(keep_picture, reports))
        show(self.flow_run_id, self.recipe.name, sections)
        write_report(run, reports, ending, facts=facts)


def keep_picture(folder: Path, name: str, png: bytes) -> str:
    """Write a picture into a report folder, whole or not at all, and return its address.

    The address is a path from the server's root: both UIs show it, and through ``ssh -L`` too,
    while the new one shows no data URI. The digest in it lets a browser see that the picture is
    another one than before.
    """
    begun = folder / f".{name}.{os.getpid()}"
    begun.write_bytes(png)
    os.replace(begun, folder / f"{name}.png")
    version = hashlib.sha256(png).hexdigest()[:DIGEST_DIGITS]
    return f"/{REPORTS}/{folder.name}/{name}.png?v={version}"


def show_end(flow: Any, flow_run: Any, state: Any) -> None:
    """Show on the page of ``flow_run`` how it ended. A page that cannot be published is logged: the
    hooks after this one matter more.

    A hook, ``on_crashed`` and ``on_cancellation``: it runs in the worker's process, so also after a
    kill -9 of the flow. Idempotent: Prefect may call it twice.
    """
    folder = run_directory(flow_run.parameters.get("recipe", flow_run.name), str(flow_run.id))
    if not (folder / RECIPE).is_file():
        return  # it ended before it had begun
    try:
        recipe = Run.open(folder.name, folder.parent).recipe
        View(folder, recipe, flow_run.id).publish(_ending(flow_run, state))
    except Exception as error:  # noqa: BLE001  see above
        get_logger(__name__).warning(
            f"the page of {folder.name} does not say how the run ended"
            f" ({type(error).__name__}: {error})"
        )


def show_ends_below(flow: Any, flow_run: Any, state: Any) -> None:
    """Do so for the runs of the pipeline that ``flow_run`` called."""
    called = FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [flow_run.id]}})
    with get_client(sync_client=True) as client:
        children = client.read_flow_runs(flow_run_filter=called)
    for child in children:
        if child.state is None or not child.state.is_final():
            show_end(flow, child, state)


def _ending(flow_run: Any, state: Any) -> Ending:
    """Return how the run ended: a cancelled one calls its hooks as Crashed, too."""
    with get_client(sync_client=True) as client:
        now = client.read_flow_run(flow_run.id).state or state
    if now.type in CANCELLED:
        return Ending("cancelled", now.message or "")
    return Ending(state.name.lower(), state.message or "")


LAST_S = 30.0  # for the last pass, at the end of a run
STOPPED_S = 5.0  # for that of a run that is being stopped, before its process is killed
EVERY_S = 30.0  # one pass, which takes about a second, but for those at once


class RunPage:
    """Publishes ``view`` in the background. Made by ``RunPage.open``."""

    def __init__(self, view: View, log: Callable[[str], None]) -> None:
        self._view, self._log = view, log
        self._wanted = threading.Event()
        self._at_once = False
        self._ending: Ending | None = None
        # In the caller's context: Prefect's settings and the flow run's logger are there.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._publish,), name="run-page", daemon=True
        )

    @classmethod
    @contextmanager
    def open(cls, view: View, log: Callable[[str], None]) -> "Iterator[RunPage]":
        """Yield the page of a run; whatever ends the context is on the page as the run's end."""
        page = cls(view, log)
        page._thread.start()
        try:
            yield page
        except Exception as error:
            page.end(Ending("failed", f"{type(error).__name__}: {error}"), LAST_S)
            raise
        except BaseException as stopped:  # a signal: Prefect's cancel, Ctrl-C
            page.end(Ending("stopped", type(stopped).__name__), STOPPED_S)
            raise
        page.end(Ending("completed"), LAST_S)

    def refresh(self, *, at_once: bool = False) -> None:
        """Publish what the run has come to, in the background: once in ``EVERY_S``, or
        ``at_once``, for what a run does a few times only."""
        self._at_once |= at_once
        self._wanted.set()

    def end(self, ending: Ending, limit_s: float = LAST_S) -> None:
        """Publish the run's end and stop; does nothing after the first call."""
        if self._ending is not None:
            return
        self._ending = ending
        self._wanted.set()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self._log(f"the run's page did not finish within {limit_s:.0f} s; it may lack the end")

    def _publish(self) -> None:
        ending, due, failed = None, monotonic(), False
        while ending is None:
            self._wanted.wait()
            self._wanted.clear()
            while self._ending is None and not self._at_once and (left_s := due - monotonic()) > 0:
                self._wanted.wait(left_s)
                self._wanted.clear()  # before the conditions are looked at: none is missed
            self._at_once = False
            ending = self._ending
            try:
                self._view.publish(ending or RUNNING)
            except Exception as error:  # noqa: BLE001  the run continues without its page
                if not failed:
                    self._log(f"the run's page is not up to date ({type(error).__name__}: {error})")
                failed = True
            due = monotonic() + EVERY_S
