"""A run where the locale is not UTF-8, there is a proxy, and TMPDIR is long and has spaces."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import main
from tests.conftest import HOME
from tests.flows.small_run import ROOT, SMALL, summary_of

CLOSED = "http://127.0.0.1:9"
PROXIES = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), CLOSED)
NOT_UTF_8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
TEMPLATE = (
    "{% for message in messages %}<\uff5c{{ message['role'] }}\uff5c>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<\uff5cassistant\uff5c>{% endif %}"
)
STATUS = (
    "import sys; from pathlib import Path; from flows import local; local.HOME = Path(sys.argv[1]);"
    " from flows.cli import main; sys.exit(main(['status', '--format', 'json']))"
)


def environment(folder: Path) -> dict[str, str]:
    temporary = folder / "a b" / ("d" * 100)
    temporary.mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LC_")}
    given = {**NOT_UTF_8, **PROXIES, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    return {**kept, **given, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_our_server_is_not_asked_through_a_proxy(prefect_server: str, tmp_path: Path) -> None:
    """It "did not answer", and a run ended before it began."""
    asked = subprocess.run(
        [sys.executable, "-c", STATUS, str(HOME)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    server, *_ = json.loads(asked.stdout)
    assert server["state"] == "running", asked.stderr


def test_a_home_that_cannot_be_written_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``docker run --user`` leaves HOME at /, and Ray ended in a traceback."""
    monkeypatch.setenv("HOME", str(tmp_path / "gone"))
    said = "where Ray keeps its token, cannot be written"
    assert main(["run", "quickstart", "--dry-run"]) == 2
    assert f"{said}; set HOME to a folder that you can write" in capsys.readouterr().err
    assert main(["run", "quickstart", "--dry-run", "-o", "hardware.cluster=in_process"]) == 0
    capsys.readouterr()
    assert main(["doctor", "--format", "json"]) == 1
    (found,) = [one for one in json.loads(capsys.readouterr().out) if one["check"] == "home"]
    assert found["state"] == "problem"
    assert said in found["found"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_on_ray_completes_there(prefect_server: str, tmp_path: Path) -> None:
    """Ray's sockets had too long paths, and the template was read back as other tokens."""
    overrides = {
        **SMALL,
        "model.chat_template": TEMPLATE,
        "hardware.rollout.engine": "vllm",
        "hardware.rollout.engines": 1,
        "hardware.learner.threads": 1,
    }
    arguments = [f"{name}={json.dumps(value)}" for name, value in overrides.items()]
    folder = tmp_path / "project"
    folder.mkdir()
    ran = subprocess.run(
        [sys.executable, "-m", "flows.cli", "run", "quickstart"]
        + [word for one in arguments for word in ("-o", one)],
        env=environment(tmp_path),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    exported = Path(summary_of(folder)["export"])
    assert (exported / "chat_template.jinja").read_text(encoding="utf-8") == TEMPLATE
