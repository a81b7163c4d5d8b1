"""Updates of a learner as a compare-and-set: a repeated request steps once only."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from rlcore.learner.spec import UpdateRequest, UpdateResult, VersionConflict


class Versions:
    """The version of a learner's weights, and the recorded update that led to it."""

    def __init__(self) -> None:
        self.held = 0
        self._last: tuple[int, str, UpdateResult] | None = None
        self._half_done: int | None = None

    def recorded(self, request: UpdateRequest) -> UpdateResult | None:
        """Return the result of the update that led to the current version, if ``request`` is it.

        Returns None where it is to be made now. Raises ``VersionConflict`` for any other version,
        and after an update that failed between steps.
        """
        asked = (request.version, request.batch_digest)
        if self._last is not None and self._last[:2] == asked and self._half_done is None:
            return self._last[2]
        if self._half_done is not None:
            raise VersionConflict(
                f"the update of version {self._half_done} failed between optimizer steps, so the"
                " weights are neither old nor new; load a checkpoint first"
            )
        if request.version != self.held:
            raise VersionConflict(
                f"an update was requested for version {request.version} and the learner holds"
                " version "
                f"{self.held}; load the checkpoint of version {request.version} or make the "
                "batch anew"
            )
        return None

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Between the first optimizer step and the last the weights belong to no version."""
        self._half_done = self.held
        yield
        self._half_done = None

    def record(self, request: UpdateRequest, result: UpdateResult) -> None:
        """``request`` has led to ``result.version``."""
        self.held = result.version
        self._last = (request.version, request.batch_digest, result)

    def require(self, version: int | None) -> None:
        """Raise ``VersionConflict`` unless ``version`` is the one held, or None."""
        if version is not None and version != self.held:
            raise VersionConflict(
                f"version {version} was to be published and the learner holds {self.held}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, without the last result's token-level part and its time."""
        last = self._last and [*self._last[:2], asdict(_lasting(self._last[2]))]
        return {"version": self.held, "last": last}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "Versions":
        """Return what ``to_json`` wrote."""
        versions, last = cls(), saved["last"]
        versions.held = saved["version"]
        versions._last = last and (last[0], last[1], UpdateResult(**last[2]))
        return versions


def _lasting(result: UpdateResult) -> UpdateResult:
    """What a checkpoint keeps of ``result``: equal updates make equal files."""
    return replace(result, old_logprobs=[], seconds=0.0)
