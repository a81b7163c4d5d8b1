"""``rl-pipeline export-data`` writes what the run has prepared, at any time of the run."""

from pathlib import Path

import pytest

from flows.cli import main
from rlcore.data.normalise import normalise
from rlcore.data.rows import RawTable, Row
from rlcore.data.sources import read_file
from rlcore.data.write import demonstrations_table, prompts_table, rejects_table
from rlcore.results.run import record_stage
from rlcore.store.artifacts import ArtifactStore, Lineage
from tests.rlcore.results.evaluated import make_run
from tests.rlcore.results.records import stage_record

RUN = "quickstart-0123abcd"
PROMPT = [{"role": "user", "content": "2 + 2?"}]
MADE = Lineage("r", "c")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run that has come to its first stage."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    make_run(folder, RUN)
    base = stage_record(RUN, "base_model", kind="base_model", key="b")
    record_stage(ArtifactStore(folder / "store"), base, MADE)
    return folder


def prepare(runs: Path) -> None:
    """Record that the run has prepared its data."""
    row = Row("f", 0, "train", "train", "sums", PROMPT, ground_truth="4")
    tables = {
        "prompts": prompts_table([(row, [1])]),
        "demonstrations": demonstrations_table([]),
        "rejects": rejects_table([]),
    }
    store = ArtifactStore(runs / "store")
    ref = store.put("dataset", "d", tables=tables, lineage=MADE)
    record = stage_record(RUN, "prepare_data", kind="dataset", key="d", sha256=ref.sha256)
    record_stage(store, record, MADE)


@pytest.mark.parametrize("form", ["verl", "trl"])
def test_the_rows_of_a_run_that_goes_on_are_written_into_its_folder(
    form: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(runs)
    assert main(["export-data", RUN, "--form", form]) == 0
    file = runs / RUN / f"data-{form}" / "train.parquet"
    assert f"{file}: 1 rows" in capsys.readouterr().out
    raw = RawTable("f", "train", read_file(str(file), setting="f"))
    (row,), rejects = normalise(raw)
    assert not rejects
    assert (row.prompt, row.ground_truth, row.data_source) == (PROMPT, "4", "sums")


def test_data_that_is_not_prepared_and_a_folder_that_is_there_are_refused(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export-data", RUN, "--form", "verl"]) == 2
    assert "has not ended the stage prepare_data; it has come to base_model" in (
        capsys.readouterr().err
    )
    prepare(runs)
    assert main(["export-data", RUN, "--form", "verl", "--out", str(runs)]) == 2
    assert f"--out {runs} is there already" in capsys.readouterr().err
