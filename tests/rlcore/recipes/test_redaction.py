"""No secret is in what a run writes. Those planted here are made when the tests run."""

import base64
import io
import logging
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe, recipe_names
from rlcore.recipes.redaction import (
    HIDDEN,
    redact,
    redact_error,
    redact_logs,
    redacting,
    secrets_of,
)
from schemas.errors import UserError

# Made here, so that no file holds what looks like a key; the same in every process of a test run.
TOKEN = "planted-" + sha256(b"token").hexdigest()[:32]
PASSWORD = "planted-" + sha256(b"password").hexdigest()[:16]
ENVIRONMENT = {
    "SOME_SERVICE_TOKEN": TOKEN,
    "PREFECT_API_AUTH_STRING": f"admin:{PASSWORD}",
    "CHAT_WEBHOOK_URL": "https://chat.example/" + TOKEN[:20],
    "MONKEY": "a word that is not a key",
    "SHORT_KEY": "test",
}
SHAPED = ["hf_" + "a1" * 17, "sk-" + "b2" * 20, "AKIA" + "C3" * 8, "ghp_" + "d4" * 18]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"401 for {TOKEN}.", "401 for ***."),
        (f"login admin:{PASSWORD} and {PASSWORD}", "login *** and ***"),
        (
            f"Authorization: Basic {base64.b64encode(f'admin:{PASSWORD}'.encode()).decode()}",
            "Authorization: Basic ***",
        ),
        ("https://me:hunter22@hub.example/a b", "https://***@hub.example/a b"),
        ("https://hunter22@hub.example/x", "https://***@hub.example/x"),
        ("ssh://git@hub.example/x", None),
        ("https://:hunter22@hub.example", "https://***@hub.example"),
        ("s3://bucket/a?X-Amz-Signature=abc&part=1", "s3://bucket/a?X-Amz-Signature=***&part=1"),
        ("http://h/?access_token=abc#x", "http://h/?access_token=***"),
        ("http://h/?a=1&amp;sig=abc'", "http://h/?a=1&amp;sig=***'"),
        *((f"key {shaped}!", "key ***!") for shaped in SHAPED),
        (f"POST https://chat.example/{TOKEN[:20]} 500", "POST *** 500"),
        ("a word that is not a key; test", "a word that is not a key; test"),
        ("user@host.example, 12:30@noon, s3://bucket/a@b", None),
        ("f(key=1), tokenizer?, x ? y : token=z", None),
        ("http://host:4200/api?tokens=5&monkey=2", None),
    ],
)
def test_what_is_a_secret_and_what_is_not(text: str, shown: str | None) -> None:
    assert redact(text, ENVIRONMENT) == (text if shown is None else shown)


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        *((name, True) for name in ("DB_PASS", "MY_PWD", "GITHUB_PAT", "NPM_AUTH", "SENTRY_DSN")),
        *(
            (name, True)
            for name in ("AZURE_STORAGE_CONNECTION_STRING", "OPENAI_API_KEYS", "ARGILLA_APIKEY")
        ),
        *((name, True) for name in ("SESSION_COOKIE", "CI_JOB_JWT", "my_creds", "PASS")),
        *(
            (name, False)
            for name in ("PWD", "OLDPWD", "MONKEY", "COMPASS", "PATH", "AUTHOR", "SPAT")
        ),
    ],
)
def test_which_variables_hold_a_secret(name: str, hidden: bool) -> None:
    said = redact(f"cannot connect with {TOKEN}", {name: TOKEN})
    assert said == f"cannot connect with {HIDDEN if hidden else TOKEN}"
    assert bool(secrets_of({name: TOKEN})) == hidden


def test_a_terminal_obeys_nothing_that_is_logged_or_raised(planted: str) -> None:
    """A reward may raise what a model wrote: a title of the window, a cleared screen, a link."""
    hostile = "\x1b]0;title\x07\x1b[2J\x9b1A\rovertaken\n\tkept"
    harmless_ = r"\x1b]0;title\x07\x1b[2J\x9b1A\rovertaken" + "\n\tkept"
    redact_logs()
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logger = logging.getLogger("hostile")
    logger.addHandler(handler)
    try:
        try:
            raise ValueError(hostile)
        except ValueError:
            logger.exception(hostile)
    finally:
        logger.removeHandler(handler)
    assert harmless_ in written.getvalue()
    assert not set("\x1b\x07\x9b\r") & set(written.getvalue())
    with pytest.raises(ValueError) as raised, redacting():
        raise ValueError(hostile)
    assert str(raised.value) == harmless_


def test_a_proxys_password_is_a_secret_of_the_environment() -> None:
    assert list(secrets_of({"HTTPS_PROXY": "http://me:hunter22@proxy:3128", "X": "a"})) == [
        "HTTPS_PROXY"
    ]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    factory = logging.getLogRecordFactory()
    yield TOKEN
    logging.setLogRecordFactory(factory)


def failing(what: str) -> None:
    try:
        raise OSError(5, f"cannot read {what}")
    except OSError as error:
        error.add_note(f"asked for {what}")
        raise RuntimeError(f"the store failed: {what}") from error


def test_a_log_line_and_its_traceback_hold_none(planted: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("own.test_redaction")
    logger.addHandler(handler)
    try:
        redact_logs()
        redact_logs()  # twice is once
        logger.warning("asked %s with %r", "https://me:hunter22@host", planted)
        try:
            failing(planted)
        except RuntimeError:
            logger.exception("it failed with %s", planted)
    finally:
        logger.removeHandler(handler)
    written = stream.getvalue()
    assert "asked https://***@host with '***'" in written
    assert "RuntimeError: the store failed: ***" in written
    assert "asked for ***" in written
    assert planted not in written


def test_an_error_that_leaves_holds_none(planted: str) -> None:
    with pytest.raises(RuntimeError, match=r"the store failed: \*\*\*") as told, redacting():
        failing(planted)
    cause = told.value.__cause__
    assert isinstance(cause, OSError)
    assert cause.errno == 5
    assert str(cause) == f"[Errno 5] cannot read {HIDDEN}"
    assert cause.__notes__ == [f"asked for {HIDDEN}"]


def test_an_error_that_says_more_than_its_arguments_holds_none(planted: str) -> None:
    class Refused(Exception):
        def __init__(self, url: str) -> None:
            super().__init__()
            self.url = url

        def __str__(self) -> str:
            return f"{self.url} refused"

    error = ExceptionGroup("two", [Refused(f"https://me:{planted}@h"), ValueError(planted)])
    redact_error(error)
    assert [str(each) for each in error.exceptions] == ["https://***@h refused", HIDDEN]


def test_an_error_that_cannot_be_changed_is_replaced(planted: str) -> None:
    class Refused(Exception):
        def __str__(self) -> str:
            return f"refused {[planted]}"

    with pytest.raises(RuntimeError, match=r"^Refused: refused \['\*\*\*'\]$") as told, redacting():
        raise Refused
    assert told.value.__suppress_context__


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            {"data.sources.0.path": "https://me:hunter22@host/rows.jsonl"},
            "data.sources.0.path holds a URL with user and password",
        ),
        ({"store": f"s3://AK:{TOKEN}@bucket/runs"}, "store holds the value of SOME_SERVICE_TOKEN"),
        ({"model.path": f"/models/{TOKEN}"}, "model.path holds the value of SOME_SERVICE_TOKEN"),
        ({"store": "s3://b/a?X-Amz-Signature=abc"}, "store holds a URL that is signed"),
        (
            {"reward.functions": [{"name": "arithmetic", "options": {"api": SHAPED[1]}}]},
            "reward.functions.0.options.api holds what looks like a key",
        ),
        ({"no.such.key": f"{TOKEN}"}, "no.such.key holds the value of SOME_SERVICE_TOKEN"),
    ],
)
def test_a_recipe_that_holds_one_is_refused_without_naming_it(
    overrides: dict[str, Any], said: str, planted: str
) -> None:
    """Nothing of it reaches lineage, which follows every run to its recipe's text."""
    with pytest.raises(UserError, match=f"recipe 'quickstart': {said}, and a recipe is") as told:
        load_recipe("quickstart", overrides, directory=RECIPES)
    for secret in (TOKEN, "hunter22", "abc", *SHAPED):
        assert secret not in str(told.value)


def test_no_recipe_of_the_project_is_refused(planted: str) -> None:
    for name in recipe_names(RECIPES):
        load_recipe(name, directory=RECIPES)


def test_the_line_of_a_command_holds_none(
    planted: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from flows.cli import main

    assert main(["run", str(tmp_path / f"{planted}.yaml"), "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert HIDDEN in error
    assert planted not in error
