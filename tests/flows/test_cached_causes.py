"""A stage that runs again names what changed, and nothing else."""

from dataclasses import asdict, replace
from typing import Any

from flows.stage_status import causes
from rlcore.plan.states import Cause, What
from rlcore.store.versions import FIRST
from schemas.artifacts import ArtifactRef, Manifest
from tasks.runtime.keys import MADE_OF, KeyParts

NOW = KeyParts(
    "rl",
    recipe={"seed": 0, "reward": {"functions": [{"name": "math", "weight": 1.0}]}, "rl": {"k": []}},
    parents={"dataset": "d1"},
    inputs={"data.sources[0]": "sha256:1"},
    code={"version": "1", "mine:f": "c1", "torch": "torch==2.9"},
)


def manifest(parts: KeyParts | None, created_at: str = "1") -> Manifest:
    ref = ArtifactRef(kind="dataset", key="k", uri="", sha256="d1")
    metadata: dict[str, Any] = {} if parts is None else {MADE_OF: asdict(parts)}
    return Manifest(
        kind="policy",
        key="k",
        sha256="0",
        files={},
        recipe_digest="r",
        code_fingerprint="c",
        parents={"dataset": ref},
        created_at=created_at,
        metadata=metadata,
    )


def test_each_part_is_a_cause_of_its_own_kind() -> None:
    before = KeyParts(
        "rl",
        recipe={
            "seed": 1,
            "reward": {"functions": [{"name": "math", "weight": 0.5}]},
            "rl": {"k": [], "old": 3},
        },
        parents={"dataset": "d0"},
        inputs={"data.sources[0]": "sha256:0"},
        code={"version": "0", "mine:f": "c0", "torch": "torch==2.8", "gone:f": "c"},
    )
    assert causes(NOW, [manifest(before)], ["dataset"]) == (
        Cause(What.RECIPE, "seed", 1, 0),
        Cause(What.RECIPE, "reward.functions.0.weight", 0.5, 1.0),
        Cause(What.RECIPE, "rl.old", 3, None),
        Cause(What.INPUT, "data.sources[0]", "sha256:0", "sha256:1"),
        Cause(What.VERSION, FIRST[0], "0", "1"),
        Cause(What.CODE, "mine:f", "c0", "c1"),
        Cause(What.CODE, "torch", "torch==2.8", "torch==2.9"),
        Cause(What.CODE, "gone:f", "c", None),
        Cause(What.PARENT, "dataset", "d0", "d1"),
    )


def test_the_nearest_of_earlier_results_is_compared_the_newest_of_equals() -> None:
    """Causes of last month's recipe would hide the edit of today."""
    far = replace(NOW, inputs={}, code={"version": "1"})
    near = [replace(NOW, parents={"dataset": name}) for name in ("older", "newer")]
    other = replace(NOW, stage="sft")
    earlier = [
        manifest(far, "9"),
        manifest(near[0], "1"),
        manifest(near[1], "2"),
        manifest(other, "3"),
    ]
    (cause,) = causes(NOW, earlier, ["dataset"])
    assert cause == Cause(What.PARENT, "dataset", "newer", "d1")


def test_a_parent_that_is_not_made_yet_counts_for_nothing() -> None:
    assert causes(replace(NOW, parents={}), [manifest(NOW)], ["dataset"]) == ()


def test_results_of_earlier_versions_are_told_from_none() -> None:
    assert causes(NOW, [manifest(None)], ["dataset"]) == (Cause(What.UNRECORDED),)
    assert causes(NOW, [manifest(None)], ["base_model"]) == (Cause(What.NEW),)
    assert causes(NOW, [], ["dataset"]) == (Cause(What.NEW),)


def test_parts_survive_their_manifest() -> None:
    document = manifest(NOW).model_dump(mode="json")
    assert KeyParts.from_json(Manifest.model_validate(document).metadata[MADE_OF]) == NOW
