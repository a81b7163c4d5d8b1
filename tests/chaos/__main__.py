"""Deals blows to runs, and checks that none loses or leaves anything.

python -m tests.chaos [pipeline] [--blows 12] [--seed 0]
    three quarters of the blows to runs in one process: SIGKILL, SIGTERM and SIGSTOP at random and
    at named points, a full disk, a bucket that is silent for a minute; the rest to each process of
    deployed runs, on Ray and vLLM, one of which has its engine killed every third iteration
python -m tests.chaos pipeline|episodes|episodes-gepo [--victims engine learner ...] [--points 3]
    deployed runs alone, and each victim at so many points

A run that ends of a blow is started again. Exit code 1 unless all weights in the end equal those of
a run that nobody touched, each end is named in time, and no process is left. Prints a line per
blow, then a table, which is in a JSON file too.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from flows.paths import ROOT
from tests.chaos import blows, jobs
from tests.chaos.blows import HARASSED, Blow, generator
from tests.chaos.bucket import bucket
from tests.chaos.deployed import Site, bring_up, harassed, ordeal
from tests.chaos.forks import forks
from tests.chaos.inline import DISK_BYTES, Inline

JOBS = {
    "pipeline": jobs.pipeline,
    "episodes": jobs.episodes,
    "episodes-gepo": jobs.episodes_gepo,
}
RESULTS = ROOT / "runs" / "chaos.json"


def main(arguments: list[str] | None = None) -> int:
    """Deal the blows, report them, and return the exit code."""
    options = _options(arguments)
    folder = Path(tempfile.mkdtemp(prefix="rl-chaos-"))
    done: list[Blow] = []
    try:
        with closing(_dealt(folder, options)) as dealt:
            for blow in dealt:
                done.append(blow)
                _print(blow)
    except KeyboardInterrupt:
        report(done, folder)
        return 130
    return report(done, folder)


def _print(blow: Blow) -> None:
    print(" | ".join(blows.row(blow)), flush=True)
    if not blow.held:
        print(f"    see {blow.log}; left: {', '.join(blow.orphans) or 'nothing'}", flush=True)


def report(done: list[Blow], folder: Path) -> int:
    """Print the table, write it as JSON, and return the exit code; ``folder`` is removed where all
    is well."""
    print("\n" + "\n".join(blows.table(done)))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(blow) for blow in done], indent=1), encoding="utf-8")
    held = sum(blow.held for blow in done)
    print(f"\n{held} of {len(done)} blows lost nothing and left nothing; {RESULTS}")
    if held < len(done):
        print(f"What the others did is in {folder}.")
        return 1
    shutil.rmtree(folder)
    return 0


def _dealt(folder: Path, options: argparse.Namespace) -> Generator[Blow, None, None]:
    """Yield the blows as they are dealt."""
    job = JOBS[options.job](folder)
    victims = options.victims
    if victims is None and options.job != "pipeline":
        victims = list(job.victims)
    if unknown := {*(victims or ())} - {*job.victims}:
        sys.exit(f"{options.job} has no {', '.join(unknown)}; it has {', '.join(job.victims)}")
    inline, deployed = blows.plan(options.blows)
    if victims is not None:
        inline, deployed = [], blows.of_victims(victims, options.points)
    with bring_up(folder, job) as site:
        if inline:
            with inline_site(folder) as one:
                one.undisturbed()
                for number, kind in enumerate(inline):
                    yield one.strike(kind, number, generator(options.seed, kind, number))
        if deployed:
            yield from _on_site(site, deployed, options.seed)


def _on_site(site: Site, kinds: list[str], seed: int) -> Iterator[Blow]:
    site.undisturbed()
    dealt = [
        (kind, generator(seed, kind, number))
        for number, kind in enumerate(kinds)
        if kind != HARASSED
    ]
    yield from ordeal(site, dealt)
    if HARASSED in kinds:
        yield harassed(site)


@contextmanager
def inline_site(folder: Path) -> Iterator[Inline]:
    """Yield what deals blows to runs in one process."""
    disk = folder / "disk"
    with ExitStack() as stack:
        made = stack.enter_context(bucket(folder / "bucket.log"))
        plain = stack.enter_context(forks())
        small = stack.enter_context(forks(disk, DISK_BYTES))
        yield Inline(folder / "inline", plain, small, disk, made)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", nargs="?", choices=JOBS, default="pipeline")
    parser.add_argument("--blows", type=int, default=12, help="a quarter of them deployed")
    parser.add_argument("--victims", nargs="+", help="of deployed runs, and no other blows")
    parser.add_argument("--points", type=int, default=3, help="kills of each victim; stopped: one")
    parser.add_argument("--seed", type=int, default=0, help="of the points")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
