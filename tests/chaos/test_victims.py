"""Victims are told apart by what real processes look like: by their titles."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.chaos import victims

# As seen on Linux with Ray 2.
CALLS = ("", ".__init__", ".call", ".build")
CLASSES = {
    "VllmEngine": "engine",
    "TransformersEngine": "engine",
    "Learner": "learner",
    "RewardWorker": "reward",
    "EnvironmentProcess": "environment",
}


@contextmanager
def process(title: str) -> Iterator[psutil.Process]:
    """Run a process of this title, which is all of its command line."""
    command = ["bash", "-c", 'echo; exec -a "$0" sleep infinity', title]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as started:
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
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", CLASSES)
def test_an_actor_is_of_one_kind(name: str, call: str) -> None:
    with process(f"ray::{name}{call}") as one:
        assert kinds(one) == [CLASSES[name]]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("title", ["ray::IDLE", "ray::RuntimeEnvAgent", "Learner", "ray::Learners"])
def test_other_processes_are_no_actor(title: str) -> None:
    with process(title) as one:
        assert kinds(one) == []
