"""How a generation, an episode, and the scoring of a row ended."""

from enum import StrEnum

LEVELS = ["correct", "wrong", "malformed"]  # of a response in preferences, best first


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
    """The result of scoring one response."""

    OK = "ok"  # the function returned a score, or the answer is right
    WRONG = "wrong"  # there is an answer, and it is wrong
    NO_ANSWER = "no_answer"  # the response holds no answer, or none in the form asked for
    TIMEOUT = "timeout"  # scoring timed out: no score
    ERROR = "error"  # reward code or a judge failed: no score
    ABORTED = "aborted"  # the engine aborted the response: no score
