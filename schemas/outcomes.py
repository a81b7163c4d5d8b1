"""How a generation, an episode, and a row that was scored, came to its end."""

from enum import StrEnum


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # a stop token was sampled
    LENGTH = "length"  # ``max_new_tokens`` or the context was full
    ABORT = "abort"  # the engine gave up on the request


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"  # its last generation sampled a stop token, and nothing answered it
    LENGTH = "length"  # its last generation, or the context, ran out of tokens
    ABORT = "abort"  # the engine gave up on its last generation

    @classmethod
    def of_single_turn(cls, reason: FinishReason) -> "StopReason":
        """Return why an episode of one generation ended, given why the generation did."""
        return cls.DONE if reason == FinishReason.STOP else cls(reason.value)


class Outcome(StrEnum):
    """What became of one response when it was scored."""

    OK = "ok"  # the function gave a score, or found the answer right
    WRONG = "wrong"  # an answer was found, and it is not the right one
    NO_ANSWER = "no_answer"  # the response holds no answer, or none in the form asked for
    TIMEOUT = "timeout"  # the clock ended the scoring: no score
    ERROR = "error"  # reward code or a judge failed: no score
    ABORTED = "aborted"  # the engine aborted the response: no score
