"""Writes reports, of one run and of several with their curves overlaid; and the parts of one that
the run's page shows.

A report is one HTML file without scripts or anything to load, so that it opens from a disk, offline
and under a policy that forbids both; a page's part is Markdown of ``templates/page.md``. Whatever a
model, a data set or a reward wrote is escaped by the template engine: all that an HTML template
inserts, and all that ``page.md`` does that is no ``PageMarkup``.
"""

import base64
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from rlcore.recipes.redaction import redact
from rlcore.report import evaluation, samples
from rlcore.report.draw import STAGES, Panel, curves, picture
from rlcore.report.facts import RL, Ending, Facts, gather
from rlcore.report.text import PHASES, clean, code, cut, duration, number, plain, quoted, shortened
from rlcore.report.timeline import timeline_of, timeline_png
from rlcore.results.compare import Section
from rlcore.results.folders import REPORTS
from rlcore.results.run import Run
from rlcore.store.checks import ArtifactError
from schemas.stages import stage_parents

INDEX, PAGE = "index.html", "page.md"
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class PageSection:
    """One part of a page: the name of its artifact, what it is, and its text."""

    key: str
    description: str
    markdown: str


class PageMarkup(str):
    """Text that is already what it should be on the page."""


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
    return _write(
        folder / name,
        "run.html",
        run=facts,
        to_come=[stage for stage in planned if stage not in there],
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


def parts(facts: Facts, folder: Path, keep: Callable[[str, bytes], str]) -> Iterator[PageSection]:
    """Yield what the page shows of ``facts`` now; ``folder``: that of the report, which is linked.

    Begins with where the run is, or why it ended, and what it came to. ``keep``: takes name and
    content of a picture and returns its address. Each is rendered by the macro of its name.
    """
    address = f"/{REPORTS}/{folder.name}/{INDEX}"

    def told(name: str, description: str, key: str = "", **given: Any) -> PageSection:
        text = getattr(_template(PAGE).module, name)(facts, **given)
        return PageSection(key or name, description, str(text).strip())

    yield told("run", "Where this run is, or why it ended.", address=address, report=folder / INDEX)
    if facts.restarts:
        why = "Workers that died, hung or have other ranks; the run continued. Times are UTC."
        yield told("restarts", why)
    for stage in STAGES:
        first, every = facts.curves.of(stage)
        if every:
            key = f"{stage.replace('_', '-')}-curves"
            why = f"Metrics of the stage {stage}, from its metrics table."
            given = {"stage": stage, "panels": every, "picture": keep(key, picture(first))}
            yield told("metrics", why, key=f"metrics-{stage}", **given)
    if facts.gap:
        drawn = keep("proxy-vs-true", picture(facts.gap))
        why = "Mean reward of each iteration and the true accuracy of the same samples."
        yield told("proxy", why, key="proxy-vs-true", picture=drawn)
    if any(stage.name == RL for stage in facts.stages):
        yield told("diagnostics", f"{len(facts.checks)} checks over the metrics of the RL stage.")
    if facts.sheets:
        yield told("data", "The dataset of this run: counts, splits, lengths in tokens, rejects.")
    if facts.pair_accuracy is not None and facts.calibration is not None:
        why = "The reward model on prompts it was not trained on."
        yield told("reward_model", why, key="reward-model")
    if facts.evaluation is not None:
        yield told("evaluation", "Each checkpoint on held-out prompts.")
    if facts.completions is not None:
        yield told("completions", "Prompts of the test split and what each checkpoint answers.")
    if facts.pairs:
        yield told("compared", "Answers that a judge compared, and which it prefers.")
    if facts.export:
        yield told("export", "Where the exported model is.")
    why = "Stages of this run: their artifacts, what they were made from, and by which flow run."
    yield told("lineage", why, address=address)


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
    is_html = name != PAGE
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=is_html,
        undefined=StrictUndefined,
        finalize=_shown if is_html else _escaped,  # for every expression, so that none is missed
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _HTML_FILTERS if is_html else _MARKDOWN_FILTERS
    return environment.get_template(name)


def _shown(value: Any) -> Any:
    """Return what a template inserts; text of whoever wrote it without what is not seen."""
    return clean(value) if type(value) is str else value


def _drawn(panel: Panel) -> str:
    """Return the picture of a panel, whose title is a caption beside it."""
    return _data_url(picture([panel], titles=False, form="svg"), "svg+xml")


def _data_url(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _escaped(value: Any) -> PageMarkup:
    """Return what a template of Markdown inserts."""
    return value if isinstance(value, PageMarkup) else PageMarkup(plain(str(value)))


def _row(cells: Sequence[Any]) -> PageMarkup:
    """Return a row of a table, its text escaped."""
    return PageMarkup(f"| {' | '.join(map(_escaped, cells))} |")


_HTML_FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "shortened": shortened,
    "cut": cut,
    "duration": duration,
    "drawn": _drawn,
}
_MARKDOWN_FILTERS: dict[str, Callable[..., Any]] = {
    "literal": PageMarkup,
    "number": lambda value: PageMarkup(number(value)),
    "fixed": lambda value, digits: PageMarkup(f"{value:,.{digits}f}"),
    "quoted": lambda text: PageMarkup(quoted(text)),
    "code": lambda text: PageMarkup(code(text)),
    "row": _row,
}
