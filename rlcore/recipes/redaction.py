"""Keeps secrets out of what a run writes: its log, its states and page, its reports, its records.

The rule. A secret is

* the value of a variable of this process's environment whose name ends as one of ``NAMED`` or
  ``VARIABLES``, but for ``PLAIN``, from eight characters on; of a value ``user:password`` also
  the password, and both in base 64;
* user and password in a URL, ``scheme://user:password@host``, of http a user alone too;
* the value of a parameter of a URL whose name ends so, or is ``signature``, ``sig`` or ``auth``;
* what looks like a key of a known service (``SHAPES``).

In text that is shown it becomes ``***``. A recipe that holds one is refused instead
(``check_recipe``): recipes are recorded word by word, and rerun from there. What a policy samples
is what it learns from, and is recorded as it is.
"""

import base64
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from html import escape
from typing import Any

from schemas.errors import UserError

NAMED = (
    *("key", "key_id", "token", "secret", "password", "passwd", "passphrase", "credential"),
    *("credentials", "auth_string", "webhook", "webhook_url"),
)
VARIABLES = (  # as well, where it is the name of a variable
    *("keys", "apikey", "accesskey", "secretkey", "tokens", "secrets", "passwords", "passcode"),
    *("pass", "pwd", "pw", "creds", "auth", "pat", "jwt", "dsn", "cookie", "connection_string"),
    *("conn_str", "connstr"),
)
PLAIN = {"PWD", "OLDPWD"}  # of every shell: folders
SHAPES = (
    r"hf_[A-Za-z0-9]{30,}",
    r"sk-[\w-]{32,}",
    r"AKIA[0-9A-Z]{16}",
    r"gh[pousr]_\w{36}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
)
SHORTEST = 8  # characters of a value: a shorter one is a word of the language
HIDDEN = "***"
_ENDS = "|".join(NAMED)
_NAMED = re.compile(rf"(?:^|_)(?:{_ENDS}|{'|'.join(VARIABLES)})$", re.IGNORECASE)
# Of http a user alone too: it may be a token.
_USER_INFO = re.compile(
    r"(?<=://)[^\s/@:'\"<>]*:[^\s/@'\"<>]+(?=@)"
    r"|(?:(?<=http://)|(?<=https://))[^\s/@:'\"<>]+(?=@)"
)
_PARAMETER = re.compile(
    rf"(?<=[?&;])((?:[\w.~%-]*[_-])?(?:{_ENDS}|signature|sig|auth)=)[^\s&;'\"<>)\]]+",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SHAPE = re.compile(rf"(?<![\w-])(?:{'|'.join(SHAPES)})")


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return ``text`` with ``***`` in the place of every secret.

    >>> redact("GET s3://me:hunter22@bucket/a", {})
    'GET s3://***@bucket/a'
    """
    if not text:  # as most rewards' detail is: the environment is not looked at for each
        return text
    for value in _values(frozenset(environment.items())):
        text = text.replace(value, HIDDEN)
    if "://" in text:
        text = _USER_INFO.sub(HIDDEN, text)
    text = _PARAMETER.sub(rf"\g<1>{HIDDEN}", text)
    return _SHAPE.sub(HIDDEN, text)


def harmless(text: str) -> str:
    """Return ``text``, which may be a model's or a reward's, redacted and with its control
    characters written out but for tabs and ends of lines: a terminal would obey them."""
    return _CONTROL.sub(lambda one: one[0].encode("unicode_escape").decode(), redact(text))


def secrets_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are secrets by their name, and those with a password in a URL."""
    return {
        name: value
        for name, value in environment.items()
        if _is_secret(name, value) or _USER_INFO.search(value)
    }


def check_recipe(name: str, tree: Any, environment: Mapping[str, str] = os.environ) -> None:
    """Raise UserError, with a line per place, where the recipe ``name`` holds a secret."""
    found = [
        f"recipe '{name}': {path} holds {what}, and a recipe is recorded with every run of it:"
        f" {remedy}"
        for path, text in _strings(tree, "")
        if (said := _secret_in(text, environment)) is not None
        for what, remedy in [said]
    ]
    if found:
        raise UserError("\n".join(dict.fromkeys(found)))


def redact_logs() -> None:
    """Redact every record that a logger of this process makes from now on, its traceback too."""
    alter_records("redaction", _redact_record)


def _redact_record(record: logging.LogRecord) -> None:
    try:
        record.msg, record.args = harmless(record.getMessage()), ()
    except (TypeError, ValueError):  # arguments that do not fit: the handler reports that
        return
    if record.exc_info:  # formatters take the text where it is there already
        record.exc_text = harmless(logging.Formatter().formatException(record.exc_info))


def alter_records(name: str, alter: Callable[[logging.LogRecord], None]) -> None:
    """Let ``alter`` change every record that a logger of this process makes from now on, after
    those that were given before; a second one of the same ``name`` is ignored."""
    make = logging.getLogRecordFactory()
    names = getattr(make, "altered_by", frozenset[str]())
    if name in names:
        return

    def altered(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        alter(record)
        return record

    altered.altered_by = names | {name}  # pyright: ignore[reportFunctionMemberAccess]
    logging.setLogRecordFactory(altered)


@contextmanager
def redacting() -> Iterator[None]:
    """Redact the messages of errors that leave the context: what catches them records them.

    An error that makes its message of other things leaves as a RuntimeError with that message.
    """
    try:
        yield
    except BaseException as error:
        redact_error(error)
        if (clean := harmless(str(error))) != str(error):
            raise RuntimeError(f"{type(error).__name__}: {clean}") from None
        raise


def redact_error(error: BaseException) -> None:
    """Redact what an error and those that led to it say, in place."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.args = tuple(harmless(a) if isinstance(a, str) else a for a in each.args)
        if hasattr(each, "__notes__"):
            each.__notes__ = [harmless(note) for note in each.__notes__]
        for name in {*vars(each), *_members(type(each))}:
            value = getattr(each, name, None)
            if isinstance(value, str) and (clean := harmless(value)) != value:
                with suppress(AttributeError, TypeError):  # it is read-only
                    setattr(each, name, clean)
        waiting += [e for e in (each.__cause__, each.__context__) if e is not None]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


def _members(kind: type[BaseException]) -> set[str]:
    """Return the attributes that errors keep outside their ``__dict__``, as OSError its file."""
    return {
        name
        for cls in kind.__mro__
        for name, member in vars(cls).items()
        if inspect.ismemberdescriptor(member) or inspect.isgetsetdescriptor(member)
    }


@lru_cache(maxsize=4)
def _values(environment: frozenset[tuple[str, str]]) -> list[str]:
    """Return what replaces the secrets of ``environment`` in a text, the longest first."""
    values: set[str] = set()
    for name, value in environment:
        if not _is_secret(name, value):
            continue
        values |= {value, escape(value)}
        _, colon, password = value.partition(":")
        if colon:
            values.add(base64.b64encode(value.encode(errors="replace")).decode())
            if len(password) >= SHORTEST:
                values.add(password)
    return sorted(values, key=len, reverse=True)


def _is_secret(name: str, value: str) -> bool:
    return name not in PLAIN and len(value) >= SHORTEST and bool(_NAMED.search(name))


def _secret_in(text: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return what secret ``text`` holds, and where it belongs instead; None where it holds none."""
    for name, value in environment.items():
        if _is_secret(name, value) and value in text:
            return f"the value of {name}", "leave it out; what needs it reads the variable"
    if _USER_INFO.search(text):
        return (
            "a URL with user and password",
            "leave them out; storage, hub and judges (key_env) read theirs from the environment",
        )
    if _PARAMETER.search(text):
        return "a URL that is signed", "download the file, or give its address without a signature"
    if _SHAPE.search(text):
        return "what looks like a key", "set it as a variable of the environment"
    return None


def _strings(tree: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the strings of a tree of dicts and lists, each with its dotted path."""
    if isinstance(tree, str):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _strings(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from _strings(value, f"{path}.{index}")
