"""The choice of a level: the strongest that withstands an attack, or a refusal."""

import os
import typing
from collections.abc import Iterator

import pytest

from rlcore.sandbox.attack import ATTACKS
from rlcore.sandbox.probe import find_sandbox, levels_here, weakness
from rlcore.sandbox.sandbox import Sandbox
from rlcore.sandbox.types import Level, SandboxError
from schemas.errors import UserError
from schemas.rl import RewardSection
from tests.kernel import param, strongest

OWN = Level.LANDLOCK if os.geteuid() == 0 else Level.LANDLOCK_SHARED_UID


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    find_sandbox.cache_clear()
    yield
    find_sandbox.cache_clear()


def test_the_strongest_level_is_chosen() -> None:
    assert find_sandbox().level is strongest()
    assert find_sandbox() is find_sandbox(), "probed once per process"


@pytest.mark.parametrize("level", [param(level) for level in levels_here()])
def test_a_level_that_is_asked_for(level: Level) -> None:
    assert find_sandbox(level).level is level


def test_without_bubblewrap_it_is_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_sandbox().level is OWN


def test_a_named_level_that_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        UserError, match=r"reward.sandbox = 'namespaces' does not hold .*bubblewrap is not"
    ):
        find_sandbox("namespaces")
    other = Level.LANDLOCK_SHARED_UID if os.geteuid() == 0 else Level.LANDLOCK
    with pytest.raises(UserError, match="it is for "):
        find_sandbox(other)


def test_where_no_level_holds_programs_are_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a filter of system calls cannot be loaded, neither level holds."""
    monkeypatch.setattr("rlcore.sandbox.levels.filter_code", lambda may_exec: b"\0" * 8)
    monkeypatch.setattr("rlcore.sandbox.sandbox.filter_code", lambda may_exec: b"\0" * 8)
    with pytest.raises(UserError) as refused:
        find_sandbox()
    text = str(refused.value)
    assert text.startswith("no level of sandbox holds on this machine (namespaces: ")
    assert "install the package bubblewrap" in text
    assert "set reward.sandbox to none" in text
    assert "\n" not in text
    assert find_sandbox("none").level is Level.NONE, "asked for by name"


def test_a_level_without_its_filter_is_found_weak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is what finds a confinement that looks as if it worked."""
    allow_all = bytes([6, 0, 0, 0, 0, 0, 0xFF, 0x7F])  # BPF_RET, SECCOMP_RET_ALLOW
    monkeypatch.setattr("rlcore.sandbox.levels.filter_code", lambda may_exec: allow_all)
    monkeypatch.setattr("rlcore.sandbox.sandbox.filter_code", lambda may_exec: allow_all)
    for level in {OWN, strongest()}:
        assert "a program starts a process" in weakness(Sandbox(level)), level


def test_each_attack_of_the_probe_can_succeed() -> None:
    """An attack that fails everywhere would prove nothing."""
    said = weakness(Sandbox(Level.NONE))
    held = {"exceeds_its_memory", "exceeds_its_threads"}  # limits, which level none has
    for attack in ATTACKS:
        expected = attack.__name__ not in held
        assert (attack.__name__.replace("_", " ") in said) is expected, said


def test_a_sandbox_that_does_not_start_is_an_error() -> None:
    sandbox = Sandbox(OWN)
    sandbox._executable = sandbox._executable.with_name("python0")
    with pytest.raises(SandboxError):
        weakness(sandbox)


def test_the_recipe_names_the_same_levels() -> None:
    field = RewardSection.model_fields["sandbox"].annotation
    assert set(typing.get_args(field)) == {"auto", *Level}
