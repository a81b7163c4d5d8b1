"""What is told of a run's stages: each, and what it was made from."""

from pathlib import Path

import pytest

from rlcore.report.facts import CACHED, GONE, MADE, OPEN, Facts, Iterations, gather
from rlcore.report.write import parts
from rlcore.store.artifacts import Lineage
from schemas.artifacts import ArtifactRef
from tests.rlcore.report.made import MadeRun

pytestmark = pytest.mark.timeout(60)
PRODUCER = "0a1b2c3d-0000-4000-8000-00000000000a"


class Story:
    """A run made by hand, whose stages read each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = MadeRun(folder / "runs")
        self.refs: dict[str, ArtifactRef] = {}

    def ended(self, stage: str, kind: str, *, cached: bool = False, **parents: str) -> None:
        source = self.folder / stage
        source.mkdir()
        (source / "weights").write_text(stage)
        read = {role: self.refs[name] for role, name in parents.items()}
        metadata = {"iteration": 30, "best_iteration": 28} if stage == "rl" else {}
        lineage = Lineage("r", "c", parents=read, producer=PRODUCER, metadata=metadata)
        key = f"{stage}-{'0' * 50}"
        self.refs[stage] = self.made.store.put(kind, key, directory=source, lineage=lineage)
        self.made.stage(stage, kind, key, self.refs[stage], cached=cached, seconds=3.25)

    def trained(self) -> None:
        self.ended("base_model", "model", cached=True)
        self.ended("prepare_data", "dataset", cached=True, base_model="base_model")
        self.ended("sft", "policy", base_model="base_model", dataset="prepare_data")
        self.ended("rl", "policy", policy="sft", dataset="prepare_data")

    def told(self) -> Facts:
        return gather(self.made.open())

    def page(self) -> str:
        shown = parts(self.told(), Path("/runs/reports/a"), lambda name, png: f"/{name}.png")
        return next(part.markdown for part in shown if part.key == "lineage")


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_a_stage_reads_what_its_manifest_names(story: Story) -> None:
    story.trained()
    story.made.stage("evaluate", "evaluation", "e" * 64, cached=None, seconds=None)
    told = story.told()
    stages = {stage.name: stage for stage in told.stages}
    assert stages["base_model"].state == CACHED
    assert stages["rl"].state == MADE
    assert stages["rl"].origins == {"policy": "sft", "dataset": "prepare_data"}
    assert stages["evaluate"].state == OPEN
    assert stages["evaluate"].origins["rl"] == "rl", "what it is to read, while it continues"
    assert told.recorded == Iterations(30, 28)


def test_the_table_links_producers_and_the_report(story: Story) -> None:
    story.trained()
    text = story.page()
    row = next(line for line in text.splitlines() if line.startswith("| sft |"))
    assert row == (
        "| sft | no | policy `sft-00000000` | base\\_model, dataset \\(prepare\\_data\\)"
        f" | [{PRODUCER[:8]}](../../runs/flow-run/{PRODUCER}) | 3.2 |"
    )
    assert "](/reports/a/index.html)" in text
    assert "30, the policy is that of 28." in text
    assert "`rl-pipeline lineage quickstart-0123abcd`" in text


def test_all_iterations_are_one_node_while_they_go_on(story: Story) -> None:
    story.ended("base_model", "model")
    story.made.stage("rl", "policy", story.made.key, cached=None, seconds=None)
    assert story.told().recorded is None
    (story.folder / "records").mkdir()
    (story.folder / "records" / "record").write_text("r")
    for number in range(3):
        key = f"{story.made.key}/{number:06d}"
        lineage = Lineage("r", "c")
        story.made.store.put("iterations", key, directory=story.folder / "records", lineage=lineage)
    assert story.told().recorded == Iterations(2, None)


def test_an_artifact_that_the_store_no_longer_has_is_named(story: Story) -> None:
    story.trained()
    story.made.store.discard("policy", story.refs["sft"].key)
    assert [stage.state for stage in story.told().stages] == [CACHED, CACHED, GONE, MADE]
    assert "| sft | gone | policy" in story.page()
