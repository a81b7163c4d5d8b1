"""Victims are told apart by what real processes look like: their title and their environment."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from rlcore.telemetry import OFF
from tests.chaos import victims

# As seen on Linux with Ray 2.
TITLES = ("ray::_Shell", "ray::_Shell.call", "ray::_Shell.build")
ALL = {**OFF, "PATH": "/usr/bin:/bin", "SPT_NOENV": "1", "OMP_NUM_THREADS": "2"}


@contextmanager
def process(title: str, environment: dict[str, str]) -> Iterator[psutil.Process]:
    """Run a process of this title, which is all of its command line."""
    command = ["bash", "-c", 'echo; exec -a "$0" sleep infinity', title]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None
            started.stdout.readline()
            found = psutil.Process(started.pid)
            while found.cmdline()[:1] != [title]:  # until it is the other program
                assert started.poll() is None
            yield found
        finally:
            started.kill()


def kinds(one: psutil.Process) -> list[str]:
    return [victim for victim in victims.ACTORS if victims.is_victim(one, victim)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize("kind", victims.ACTORS)
def test_an_actor_is_of_one_kind(kind: str, title: str) -> None:
    """Whatever every process inherits, such as telemetry that is switched off."""
    with process(title, {**ALL, **victims.marks().get(kind, {})}) as one:
        assert kinds(one) == [kind]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("title", ["ray::IDLE", "ray::RuntimeEnvAgent", "python", "ray::_Shells"])
def test_other_processes_are_no_actor(title: str) -> None:
    with process(title, ALL) as one:
        assert kinds(one) == []


def test_each_mark_is_of_one_kind() -> None:
    engine, learner = victims.marks().values()
    assert engine
    assert learner
    assert not (engine.keys() & learner.keys())
    assert not (engine.keys() | learner.keys()) & OFF.keys()
