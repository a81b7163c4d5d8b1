"""The parts of a report that the run's page shows, as Markdown of ``templates/page.md``.

Text of a model, a data set or a reward is escaped by the template engine: all that a template
inserts and that is no ``PageMarkup``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from rlcore.report.draw import RL, STAGES, gap_panel, number, picture
from rlcore.report.facts import Facts
from rlcore.report.text import code, plain, quoted
from rlcore.report.write import INDEX, TEMPLATES
from rlcore.results.folders import REPORTS

# Returns the address of the picture that is drawn by calling the last argument; the second one is
# what it shows: one that shows the same need not be drawn twice.
Pictures = Callable[[str, Any, Callable[[], bytes]], str]


@dataclass(frozen=True, slots=True)
class PageSection:
    """One part of a page: the name of its artifact, what it is, and its text."""

    key: str
    description: str
    markdown: str


class PageMarkup(str):
    """Text that is already what it should be on the page."""


def parts(facts: Facts, folder: Path, pictures: Pictures) -> Iterator[PageSection]:
    """Yield what the page shows of ``facts`` now; ``folder``: that of the report, which is linked.

    Begins with where the run is, or why it ended, and what it came to.
    """
    address = f"/{REPORTS}/{folder.name}/{INDEX}"
    told = partial(_part, facts=facts)
    yield told("run", "Where this run is, or why it ended.", address=address, report=folder / INDEX)
    if facts.restarts:
        why = "Workers that died, hung or have other ranks; the run continued. Times are UTC."
        yield told("restarts", why)
    for stage in STAGES:
        first, every = facts.curves.of(stage)
        if every:
            key = f"{stage.replace('_', '-')}-curves"
            drawn = pictures(key, first, partial(picture, first))
            why = f"Metrics of the stage {stage}, from its metrics table."
            given = {"stage": stage, "panels": every, "picture": drawn}
            yield told("metrics", why, key=f"metrics-{stage}", **given)
    if facts.proxy is not None:
        panels = [gap_panel("reward", {"": facts.proxy}, legend=False)]
        drawn = pictures("proxy-vs-true", panels, partial(picture, panels))
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
        why = "Prompts of the test split and what each checkpoint answers."
        yield told("completions", why)
    if facts.pairs:
        yield told("compared", "Answers that a judge compared, and which it prefers.")
    if facts.export:
        yield told("export", "Where the exported model is.")
    why = "Stages of this run: their artifacts, what they were made from, and by which flow run."
    yield told("lineage", why, address=address)


def _part(name: str, description: str, *, facts: Facts, key: str = "", **given: Any) -> PageSection:
    """Return the part that the macro ``name`` of the template renders from ``facts``."""
    text = getattr(_template().module, name)(facts, **given)
    return PageSection(key or name, description, str(text).strip())


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        # For every expression, so that none is missed.
        finalize=lambda value: value if isinstance(value, PageMarkup) else plain(str(value)),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "literal": PageMarkup,
        "number": lambda value: PageMarkup(number(value)),
        "fixed": lambda value, digits: PageMarkup(f"{value:,.{digits}f}"),
        "quoted": lambda text: PageMarkup(quoted(text)),
        "code": lambda text: PageMarkup(code(text)),
        "row": _row,
    }
    return environment.get_template("page.md")


def _row(cells: Sequence[Any]) -> PageMarkup:
    """Return a row of a table, its text escaped."""
    shown = (one if isinstance(one, PageMarkup) else plain(str(one)) for one in cells)
    return PageMarkup(f"| {' | '.join(shown)} |")
