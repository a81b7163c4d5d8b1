"""How a generation, and a row that was scored, came to its end."""

from enum import StrEnum


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # a stop token was sampled
    LENGTH = "length"  # ``max_new_tokens`` or the context was full
    ABORT = "abort"  # the engine gave up on the request


class Outcome(StrEnum):
    """What became of one response when it was scored."""

    OK = "ok"  # the function gave a score, or found the answer right
    WRONG = "wrong"  # an answer was found, and it is not the right one
    NO_ANSWER = "no_answer"  # the response holds no answer, or none in the form asked for
    TIMEOUT = "timeout"  # the clock ended the scoring: no score
    ERROR = "error"  # reward code or a judge failed: no score
    ABORTED = "aborted"  # the engine aborted the response: no score
