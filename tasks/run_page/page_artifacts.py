"""Artifacts of one flow run on its page in the Prefect UI, each of which is replaced in place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from rlcore.recipes.redaction import redact


class Board:
    """The artifacts of the flow run ``flow_run_id``, whose keys begin with ``recipe``: a page of
    another recipe's run has others, so that their versions do not mix.

    A key is published once and updated afterwards, also by another process: a run of fifty
    validations has as many artifacts as one of two. Use ``open``.
    """

    def __init__(self, flow_run_id: UUID, recipe: str) -> None:
        self._flow_run_id, self._recipe = flow_run_id, recipe
        self._ids: dict[str, UUID] | None = None  # by key, read from the server at first
        self._shown: dict[str, tuple[str, str]] = {}
        self._client: SyncPrefectClient | None = None

    @contextmanager
    def open(self) -> Iterator["Board"]:
        """Yield the board, connected to the server."""
        with get_client(sync_client=True) as self._client:
            try:
                yield self
            finally:
                self._client = None

    def markdown(self, *, key: str, markdown: str, description: str) -> None:
        """Show ``markdown`` under ``key``, without secrets; costs nothing where it is what is shown
        already.

        Raises what Prefect's client raises where the server refuses or does not answer.
        """
        assert self._client is not None, "enter open() first"
        markdown, description = redact(markdown), redact(description)
        name = artifact_key(self._recipe, key)
        if self._shown.get(name) == (markdown, description):
            return
        ids = self._known(self._client)
        if name in ids:
            update = ArtifactUpdate(data=markdown, description=description)
            self._client.update_artifact(ids[name], update)
        else:
            made = self._client.create_artifact(
                ArtifactCreate(
                    key=name,
                    type="markdown",
                    description=description,
                    data=markdown,
                    flow_run_id=self._flow_run_id,
                )
            )
            ids[name] = made.id
        self._shown[name] = (markdown, description)

    def _known(self, client: SyncPrefectClient) -> dict[str, UUID]:
        if self._ids is None:
            only: Any = ArtifactFilterFlowRunId(any_=[self._flow_run_id])
            found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=only))
            self._ids = {artifact.key: artifact.id for artifact in found if artifact.key}
        return self._ids


def artifact_key(*words: str) -> str:
    """Return the key of an artifact: lower-case letters, digits and dashes.

    >>> artifact_key("quickstart_ppo", "metrics", "rl")
    'quickstart-ppo-metrics-rl'
    """
    text = "-".join(words).lower()
    dashed = "".join(c if c.isascii() and c.isalnum() else "-" for c in text)
    return "-".join(filter(None, dashed.split("-")))
