"""A mistake of the user's is told once, by its sentence: Prefect's engine logs the traceback of
every error, and each flow and task that one passes through logs it again."""

import logging
import re

from schemas.errors import UserError

_ENDED = re.compile(r"(Finished in state \w+)\(.*\)", re.DOTALL)


def tell_mistakes_once() -> None:
    """Let the first record of a UserError in this process show its sentence without a traceback,
    and later ones of the same that it ended something else too."""
    make = logging.getLogRecordFactory()
    if getattr(make, "tells_once", False):
        return
    told: set[str] = set()

    def telling(*args: object, **kwargs: object) -> logging.LogRecord:
        record = make(*args, **kwargs)
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, UserError):
            sentence = str(error)
            record.exc_info, record.exc_text = None, None
            record.msg, record.args = (
                "Ended by the error above" if sentence in told else sentence,
                (),
            )
            told.add(sentence)
        elif any(sentence in str(record.msg) for sentence in told):
            record.msg = _ENDED.sub(r"\1", str(record.msg))
        return record

    telling.tells_once = True  # pyright: ignore[reportFunctionMemberAccess]
    logging.setLogRecordFactory(telling)
