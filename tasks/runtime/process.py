"""What the process of a flow is given before the flow does anything: log records without secrets,
in which a mistake of the user's is told once, and patience with a server or a worker that is away.
"""

import logging
import re

from rlcore.redaction import alter_records, redact_logs
from schemas.errors import UserError
from tasks.runtime.patience import ignore_lost_output, wait_for_server

_ENDED = re.compile(r"(Finished in state \w+)\(.*\)", re.DOTALL)


def prepare_process() -> None:
    """Prepare this process for the flow that begins; a second call does nothing."""
    redact_logs()
    tell_mistakes_once()
    wait_for_server()
    ignore_lost_output()


def tell_mistakes_once() -> None:
    """Let the first record of a UserError in this process show its sentence without a traceback,
    and later ones of the same that it ended something else too.

    Prefect's engine logs the traceback of every error, and each flow and task that one passes
    through logs it again.
    """
    told: set[str] = set()

    def tell(record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, UserError):
            sentence = str(error)
            record.exc_info, record.exc_text = None, None
            record.msg = "Ended by the error above" if sentence in told else sentence
            record.args = ()
            told.add(sentence)
        elif any(sentence in str(record.msg) for sentence in told):
            record.msg = _ENDED.sub(r"\1", str(record.msg))

    alter_records("mistakes", tell)
