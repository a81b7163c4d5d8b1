"""Posts alerts to a webhook from a separate process, so that a receiver that fails or hangs
delays nothing and an alert outlives the run that it is about.

The URL is a secret: it is in the environment alone, ``$RL_PIPELINE_WEBHOOK_URL``. The body is JSON
with a ``text``, which Slack, Mattermost and Teams' workflows show, and the alert's fields.

``python -m tasks.runtime.webhook`` posts the body on its standard input.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from rlcore.recipes.redaction import redact
from schemas.errors import UserError, did_you_mean

URL, LEAST = "RL_PIPELINE_WEBHOOK_URL", "RL_PIPELINE_WEBHOOK_LEVEL"
GIVE_UP_S = 60.0  # after the first attempt
ATTEMPT_S = 10.0
LONGEST = 4000  # characters of a text: a pipe holds the body, whoever reads it
# What the poster needs of the environment: its interpreter's, proxies, certificates.
_PASSED = (
    *("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "XDG_CACHE_HOME"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)


class AlertLevel(StrEnum):
    """How much an alert matters, from least to most."""

    INFO = "info"  # something ended well, or is over
    WARNING = "warning"  # somebody should look
    ERROR = "error"  # a run has ended without its result


def log_path() -> Path:
    """Return the file that says which alerts could not be delivered."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rl-pipeline" / "alerts.log"


def least_level(environment: Mapping[str, str] = os.environ) -> AlertLevel:
    """Return the least level that is posted. Raises UserError for one that there is not."""
    given = environment.get(LEAST) or AlertLevel.WARNING.value
    try:
        return AlertLevel(given.lower())
    except ValueError:
        names = [level.value for level in AlertLevel]
        raise UserError(
            f"{LEAST} = {given!r} is no level; use one of {', '.join(names)}"
            f"{did_you_mean(given, names)}"
        ) from None


def post(event: str, level: AlertLevel, text: str, fields: Mapping[str, str]) -> bool:
    """Start to post an alert, and return at once: whether there is a webhook that wants it.

    Raises UserError as ``least_level`` does, and for a URL that is none.
    """
    url = os.environ.get(URL)
    if not url:
        return False
    if not url.startswith(("http://", "https://")):
        raise UserError(f"{URL} is not a URL that begins with https://; correct it, or unset it")
    levels = list(AlertLevel)
    if levels.index(level) < levels.index(least_level()):
        return False
    shown = {name: redact(value)[:LONGEST] for name, value in fields.items()}
    alert = {**shown, "text": redact(text)[:LONGEST], "event": event, "level": level.value}
    poster = subprocess.Popen(
        [sys.executable, "-m", "tasks.runtime.webhook"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # whoever reads the run's output does not wait for an alert
        stderr=subprocess.DEVNULL,
        env={URL: url, **{name: os.environ[name] for name in _PASSED if name in os.environ}},
        start_new_session=True,
    )
    assert poster.stdin is not None, "it was opened as a pipe"
    with poster.stdin as body:
        body.write(json.dumps(alert).encode())
    return True


def deliver(url: str, body: bytes) -> str:
    """Post ``body``, again where the receiver fails in passing; return "" or why it was given up.

    The answer names no URL.
    """
    import httpx
    from tenacity import Retrying, retry_if_result, stop_after_delay, wait_exponential_jitter

    def attempt() -> tuple[bool, str]:  # whether another may help, and what was wrong
        try:
            answer = httpx.post(
                url, content=body, headers={"Content-Type": "application/json"}, timeout=ATTEMPT_S
            )
        except (httpx.TransportError, httpx.InvalidURL, UnicodeError) as error:  # of a host's name
            return isinstance(error, httpx.TransportError), type(error).__name__
        if answer.is_success:
            return False, ""
        return answer.status_code >= 500 or answer.status_code == 429, f"HTTP {answer.status_code}"

    retrying = Retrying(
        retry=retry_if_result(lambda outcome: outcome[0]),
        stop=stop_after_delay(GIVE_UP_S),
        wait=wait_exponential_jitter(initial=1.0, max=15.0),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else (False, ""),
    )
    return retrying(attempt)[1]


def main() -> int:
    """Deliver what is on the standard input; note in ``log_path`` what could not be."""
    body = sys.stdin.buffer.read()
    if not (why := deliver(os.environ[URL], body)):
        return 0
    path = log_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    with path.open("a", encoding="utf-8") as log:
        log.write(f"{when} UTC {json.loads(body)['event']} was not delivered: {why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
