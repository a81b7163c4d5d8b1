"""Writes reports: of one run, and of several with their curves overlaid.

A report is one HTML file without scripts or anything to load, so that it opens from a disk, offline
and under a policy that forbids both. Whatever a model, a data set or a reward wrote is escaped by
the template engine; nothing is marked as safe.
"""

import base64
import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from rlcore.recipes.redaction import redact
from rlcore.report import evaluation, samples
from rlcore.report.draw import Panel, curves, gap_panel, picture
from rlcore.report.facts import RL, Ending, Facts, gather
from rlcore.report.text import PHASES, clean, cut, duration, number, shortened
from rlcore.report.timeline import timeline_of, timeline_png
from rlcore.results.compare import Section
from rlcore.results.run import Run
from rlcore.store.checks import ArtifactError
from schemas.stages import stage_parents

INDEX = "index.html"
TEMPLATES = Path(__file__).parent / "templates"


def write_report(
    run: Run,
    folder: Path,
    ending: Ending | None = None,
    *,
    name: str = INDEX,
    facts: Facts | None = None,
) -> Path:
    """Write the report of ``run`` as ``name`` into ``folder``, whole or not at all; return its
    path.

    The run may be under way, have ended or have been killed; ``ending`` says how, where that is
    known. ``facts``: those of ``gather``, from who has them already. Raises UserError for a run
    without stages, and where the folder cannot be written.
    """
    facts = facts or gather(run, ending)
    there = {stage.name for stage in facts.stages}
    asked, scores, pruned, timeline = [], None, None, None
    if RL in there:
        try:
            asked = samples.of_policy(run)
            scores = samples.scores(run)
            pruned = samples.pruned(run)
            timeline = timeline_of(run, facts.metrics[RL])
        except ArtifactError:  # a store that goes away; the rest is worth having
            pass
    planned = [] if facts.state == "completed" else stage_parents(run.recipe)
    proxy = facts.proxy
    return _write(
        folder / name,
        "run.html",
        run=facts,
        to_come=[stage for stage in planned if stage not in there],
        proxy=[] if proxy is None else [gap_panel("reward", {"": proxy}, legend=False)],
        asked=asked,
        scores=scores,
        pruned=pruned,
        timeline=timeline,
        timeline_picture=timeline and _data_url(timeline_png(timeline), "png"),
    )


def write_overlay(runs: Sequence[Run], path: Path, extra: Sequence[Section] = ()) -> Path:
    """Write one page with the curves of several runs over each other; see ``write_report``.

    ``extra``: titled tables between the evaluations and the curves.
    """
    facts = [gather(run) for run in runs]
    return _write(
        path,
        "overlay.html",
        runs=facts,
        same={
            key
            for key, value in facts[0].overrides.items()
            if all(one.overrides.get(key) == value for one in facts)
        },
        curves=curves({one.name: one.metrics for one in facts}),
        evaluation=evaluation.of_runs({one.name: one.eval_results for one in facts}),
        extra=[
            (title, list(rows[0]), [list(row.values()) for row in rows]) for title, rows in extra
        ],
    )


def _write(path: Path, template: str, **values: Any) -> Path:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    text = redact(_template(template).render(written=now, phases=PHASES, **values))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".report-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "shortened": shortened,
        "cut": cut,
        "duration": duration,
        "drawn": _drawn,
    }
    return environment.get_template(name)


def _shown(value: Any) -> Any:
    """Return what a template inserts; text of whoever wrote it without what is not seen."""
    return clean(value) if type(value) is str else value


def _drawn(panel: Panel) -> str:
    """Return the picture of a panel, whose title is a caption beside it."""
    return _data_url(picture([panel], titles=False, form="svg"), "svg+xml")


def _data_url(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
