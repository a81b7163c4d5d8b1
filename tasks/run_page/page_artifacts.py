"""Artifacts of one flow run on its page in the Prefect UI, each of which is replaced in place."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from rlcore.recipes.redaction import redact
from rlcore.report.page import PageSection


class Board:
    """The artifacts of the flow run ``flow_run_id``, whose keys begin with ``recipe``: a page of
    another recipe's run has others, so that their versions do not mix.

    A key is published once and updated afterwards, also by another process: a run of fifty
    validations has as many artifacts as one of two.
    """

    def __init__(self, flow_run_id: UUID, recipe: str) -> None:
        self._flow_run_id, self._recipe = flow_run_id, recipe
        self._ids: dict[str, UUID] | None = None  # by key, read from the server at first
        self._shown: dict[str, tuple[str, str]] = {}

    def show(self, sections: Iterable[PageSection]) -> None:
        """Show each section under its key, without secrets; one that is shown already costs
        nothing.

        Raises what Prefect's client raises where the server refuses or does not answer.
        """
        with get_client(sync_client=True) as client:
            for section in sections:
                key = artifact_key(self._recipe, section.key)
                content = redact(section.markdown), redact(section.description)
                if self._shown.get(key) != content:
                    self._publish(client, key, *content)
                    self._shown[key] = content

    def _publish(
        self, client: SyncPrefectClient, key: str, markdown: str, description: str
    ) -> None:
        if self._ids is None:
            only: Any = ArtifactFilterFlowRunId(any_=[self._flow_run_id])
            found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=only))
            self._ids = {artifact.key: artifact.id for artifact in found if artifact.key}
        if key in self._ids:
            update = ArtifactUpdate(data=markdown, description=description)
            client.update_artifact(self._ids[key], update)
        else:
            made = ArtifactCreate(
                key=key,
                type="markdown",
                data=markdown,
                description=description,
                flow_run_id=self._flow_run_id,
            )
            self._ids[key] = client.create_artifact(made).id


def artifact_key(*words: str) -> str:
    """Return the key of an artifact: lower-case letters, digits and dashes.

    >>> artifact_key("quickstart_ppo", "metrics", "rl")
    'quickstart-ppo-metrics-rl'
    """
    text = "-".join(words).lower()
    dashed = "".join(c if c.isascii() and c.isalnum() else "-" for c in text)
    return "-".join(filter(None, dashed.split("-")))
