"""Proxies, a user without a name, a long TMPDIR: a run works all the same, or one sentence says
what to set."""

import getpass
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rlcore.cluster.host_settings import (
    LOOPBACK,
    interface_towards,
    obstacles,
    set_variables,
    socket_folder,
)

RAYS_OWN = "/session_2026-11-27_18-33-07_123456_1234567/sockets/plasma_store.1"


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY"])
def test_loopback_is_excluded_from_a_proxy_and_what_was_excluded_stays(name: str) -> None:
    environment = {name: "http://proxy:3128", "NO_PROXY": "intranet.example, 10.0.0.0/8"}
    set_variables(environment)
    assert environment["NO_PROXY"] == environment["no_proxy"]
    excluded = environment["NO_PROXY"].split(",")
    assert excluded == ["intranet.example", "10.0.0.0/8", "127.0.0.1", "localhost", "::1"]
    set_variables(environment)
    assert environment["NO_PROXY"].split(",") == excluded, "asked twice it is the same"


def test_without_a_proxy_and_with_all_excluded_nothing_is_added() -> None:
    environment: dict[str, str] = {}
    set_variables(environment)
    assert "NO_PROXY" not in environment
    environment = {"http_proxy": "http://proxy:3128", "no_proxy": "*"}
    set_variables(environment)
    assert environment["NO_PROXY"] == "*"


def test_a_user_id_without_a_name_is_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """``docker run --user 12345``: torch asks for the name, and a KeyError ended the learner."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    environment: dict[str, str] = {}
    set_variables(environment)
    monkeypatch.setenv("LOGNAME", environment["LOGNAME"])
    assert getpass.getuser() == f"uid-{os.getuid()}"


def test_sockets_fit_below_a_long_temporary_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray and vLLM make sockets below TMPDIR, whose paths may have 107 bytes."""
    deep = tmp_path / ("d" * 60) / ("a b" * 20)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = socket_folder()
    assert folder is not None
    assert len(os.fsencode(folder + RAYS_OWN)) <= 107
    assert os.stat(folder).st_uid == os.getuid()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755])
def test_a_folder_that_others_can_enter_is_not_used(
    monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """Ray opens what it makes in it to everybody, who could answer in its place."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        folder = Path(place, f"rlp-{os.getuid()}")
        folder.mkdir()
        folder.chmod(mode)
        assert socket_folder() != str(folder)
        folder.chmod(0o700)
        assert socket_folder() == str(folder)


def test_a_folder_that_others_can_replace_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a place that all can write and that is not sticky, anyone can move it away."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        os.chmod(place, 0o777)
        assert socket_folder() != str(Path(place, f"rlp-{os.getuid()}"))
        os.chmod(place, 0o1777)
        assert socket_folder() == str(Path(place, f"rlp-{os.getuid()}"))


def test_a_link_of_a_stranger_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        Path(place, "theirs").mkdir(mode=0o700)
        folder = Path(place, f"rlp-{os.getuid()}")
        folder.symlink_to("theirs")
        assert socket_folder() != str(folder)


def test_the_users_choice_of_a_place_gets_a_folder_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray would open the one that it is given to everybody."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o755)
        monkeypatch.setenv("RAY_TMPDIR", place)
        assert socket_folder() == f"{place}/rlp-{os.getuid()}"
        assert list(obstacles()) == []


def test_what_ray_cannot_do_is_one_sentence_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    assert list(obstacles()) == []
    monkeypatch.setenv("HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/" + "x" * 40)
    found = list(obstacles())
    assert [name for name, _, _ in found] == ["home", "sockets"]
    assert "cannot be written" in found[0][1]
    assert "too long: a socket's path has at most 107 bytes" in found[1][1]


def test_children_of_another_locale_write_utf_8() -> None:
    program = (
        "import subprocess, sys\n"
        "from rlcore.cluster.host_settings import set_variables\n"
        "set_variables()\n"
        "print('<\\uff5cend\\uff5c>', flush=True)\n"
        "sys.exit(subprocess.call([sys.executable, '-c', 'print(open(0).encoding)']))"
    )
    other = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **other, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout.lower().split()) == (0, ["<?end?>", "utf-8"]), ran.stderr


def test_threads_that_wait_leave_their_cores_unless_the_user_says_otherwise() -> None:
    """Beside a busy process an update took three to six times as long."""
    environment: dict[str, str] = {}
    set_variables(environment)
    assert 0 < int(environment["GOMP_SPINCOUNT"]) <= 1000
    environment = {"GOMP_SPINCOUNT": "infinity"}
    set_variables(environment)
    assert environment["GOMP_SPINCOUNT"] == "infinity"


def test_ranks_meet_on_the_interface_that_reaches_the_first() -> None:
    """gloo took what the host's name resolves to, which other hosts cannot reach."""
    assert interface_towards("tcp://127.0.0.1:4000") == LOOPBACK


def test_deepspeed_prints_no_guess_where_a_library_imports_it() -> None:
    """``--format json`` of a command that saves a model began with its line."""
    code = (
        "from rlcore.cluster.host_settings import set_variables\n"
        "set_variables()\n"
        "from deepspeed.accelerator import get_accelerator\n"
        "print(get_accelerator().device_name())"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "CUDA_VISIBLE_DEVICES": "",
    }
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ran.stdout == "cpu\n"
