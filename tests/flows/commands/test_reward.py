"""``rl-pipeline reward try``: a reward that is constant, flipped, slow or mistyped is named before
it has cost a run."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from flows import cli
from flows.paths import RECIPES
from rlcore.recipes.load import load_recipe
from rlcore.results.run import record_stage
from rlcore.rl.reward import score_rollouts
from rlcore.store.artifacts import ArtifactStore, Lineage
from tests.flows.commands.test_data import arguments as few_rows
from tests.rlcore.diagnostics.records import put_dataset, rollouts
from tests.rlcore.results.records import stage_record
from tests.rlcore.rewards.judges.server import KEY, judge_server, says
from tests.rlcore.rewards.scoring import Scoring
from tests.tiers import fast

NAME = "quickstart-0123abcd"
PROMPTS = {f"p{i}": f"What is {i} + {i}?" for i in range(5)}
SAMPLES = 4
ITERATIONS = 3
MINE = (Path(__file__).parent / "tried_rewards.py").read_text()


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with ``my.py`` and a run whose reward phase scored by ``my.py:mixed``."""
    folder = tmp_path_factory.mktemp("left")
    (folder / "my.py").write_text(MINE)
    put_run(folder)
    return folder


@pytest.fixture
def project(left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, as the working directory."""
    folder = tmp_path / "project"
    shutil.copytree(left, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return folder


def put_run(project: Path) -> None:
    """Store what a run leaves that was killed after its reward phases."""
    recipe = load_recipe(
        "quickstart",
        {
            "reward.functions": [{"name": str(project / "my.py:mixed")}],
            "reward.timeout_s": 0.5,
            "hardware.reward_workers": 2,
        },
        directory=RECIPES,
    )
    folder = project / "runs" / NAME
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    (project / "runs" / "latest").symlink_to(NAME)
    store = ArtifactStore(project / "runs" / "store")
    parents = {"dataset": put_dataset(store, PROMPTS)}
    made = Lineage("r", "c", parents, producer="0123abcd-0000-4000-8000-000000000000")
    scoring = Scoring(recipe.reward)
    for iteration in range(1, ITERATIONS + 1):
        frame = sampled(iteration)
        ref = store.put("rollouts", f"k/{iteration:06d}", tables={"rollouts": frame}, lineage=made)
        prompts = store.table(parents["dataset"], "prompts")
        rewards = score_rollouts(frame, prompts, Phase(scoring))
        scored = Lineage("r", "c", {"rollouts": ref})
        store.put("rewards", ref.key, tables={"rewards": rewards}, lineage=scored)
    scoring.close()
    record_stage(store, stage_record(NAME, "rl", kind="policy", key="k"), made)


class Phase:
    """The scorers of a reward phase."""

    def __init__(self, scoring: Scoring) -> None:
        self.scoring = scoring

    def start(self, row: Any) -> None:
        raise AssertionError("no row is scored ahead here")

    def score(self, rows: Any) -> Any:
        return self.scoring.score(rows, 30.0)


def sampled(iteration: int) -> pl.DataFrame:
    frame = rollouts(iteration, dict.fromkeys(PROMPTS, [True] * SAMPLES))
    responses = [f"{'so ' * ((7 * i + iteration) % 13)}{7 if i % 3 else 9}" for i in range(20)]
    tokens = [[1, *range(2, 2 + len(text))] for text in responses]
    return frame.with_columns(
        response=pl.Series(responses),
        token_ids=pl.Series(tokens, dtype=pl.List(pl.Int32)),
        loss_mask=pl.Series([[False] + [True] * (len(ids) - 1) for ids in tokens]),
        sampler_logprobs=pl.Series(
            [[-0.5] * len(ids) for ids in tokens], dtype=pl.List(pl.Float32)
        ),
        turn_ends=pl.Series([[len(ids)] for ids in tokens], dtype=pl.List(pl.Int32)),
    )


def listing(folder: Path) -> dict[str, Any]:
    """Return all there is below ``folder``: size, time and digest of each file, time of each
    folder."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (status.st_mtime_ns, status.st_size, digest)
    return found


def tried(
    capsys: pytest.CaptureFixture[str],
    name: str,
    source: str = "latest",
    *more: str,
    code: int = 0,
) -> list[dict[str, Any]]:
    """Return the rows of the JSON that a trial prints, which ends with ``code``."""
    assert cli.main(["reward", "try", name, source, *more, "--format", "json"]) == code
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def found(rows: list[dict[str, Any]]) -> list[str]:
    return [row["text"] for row in rows if row["part"] == "finding"]


def figure(rows: list[dict[str, Any]], part: str, name: str) -> tuple[float | None, float | None]:
    (row,) = [row for row in rows if (row["part"], row["name"]) == (part, name)]
    return row["value"], row["other"]


@pytest.mark.slow
def test_the_scores_are_the_reward_phases_bit_for_bit(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(project / "runs")
    rows = tried(capsys, "my.py:mixed")
    assert figure(rows, "rows", "rows")[0] == 60.0
    assert figure(rows, "against", "scored by both")[0] == 60.0
    assert figure(rows, "against", "disagree")[0] == 0.0
    assert figure(rows, "against", "rank correlation")[0] == 1.0
    assert found(rows) == []
    assert listing(project / "runs") == before, "the store is read only"


def test_one_changed_bit_is_a_disagreement(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "other.py").write_text(
        MINE.replace("+ 0.1 * prompt", "+ 0.1000000000000001 * prompt")
    )
    rows = tried(capsys, "other.py:mixed")
    changed = sum("1" in text for text in PROMPTS.values()) * SAMPLES * ITERATIONS
    assert 0 < figure(rows, "against", "disagree")[0] <= changed  # type: ignore[operator]


NAMED = {
    "constant": "it is constant: all 60 scored rows have 0.5",
    "flipped": "its sign is flipped against recorded: the rank correlation of the two is -1.00",
    "hanging": "it hangs: 8 of 8 rows have no score within reward.timeout_s = 0.5 s; the other 52"
    " rows were not tried (a run stops above reward.max_timeout_fraction = 0.2)",
    "words": "it gives no score for 60 of 60 rows; most frequent, on"
    " 60: UserError: the reward function returned '1.0'",
    "nothing": "on 60: the reward function returned None",
    "half_broken": "ZeroDivisionError: division by zero (my.py line 44) (a run stops above"
    " reward.max_error_fraction = 0.05)",
    "length": "it scores length and nothing else: the rank correlation of score and sampled tokens"
    " is 1.00",
    "same_for_a_prompt": "no signal: in each of 15 prompts all responses score the same",
    "escape": "on 60: ValueError: red [31m and another line",
}


ENDING = ("hanging", "words", "nothing", "half_broken", "escape")  # a run


@pytest.mark.parametrize("name", fast(NAMED, *(NAMED.keys() - {"hanging"})))
def test_what_is_wrong_is_named(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that tries a reward before it pays for a run learns from the exit code that the run
    would end."""
    del project
    code = 1 if name in ENDING else 0
    sentences = found(tried(capsys, f"my.py:{name}", code=code))
    assert sum(NAMED[name] in text for text in sentences) == 1, sentences


@pytest.mark.slow
def test_a_reward_that_scores_nothing_fails_whatever_the_bounds_allow(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del project
    allowed = ("-o", "reward.max_error_fraction=1")
    tried(capsys, "my.py:half_broken", "latest", *allowed)
    tried(capsys, "my.py:nothing", "latest", *allowed, code=1)
    assert cli.main(["reward", "try", "my.py:nothing", "latest"]) == 1, "as a table, too"


@pytest.mark.slow
def test_some_hanging_rows_lose_only_themselves(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failures above the recipe's bounds do not end a trial."""
    del project
    limited = ("-n", "36", "-o", "reward.timeout_s=0.3")
    rows = tried(capsys, "my.py:slow_on_some", "latest", *limited, code=1)
    late, scored = figure(rows, "outcome", "timeout")[0], figure(rows, "outcome", "ok")[0]
    assert (late, scored) == (12.0, 24.0)
    assert figure(rows, "against", "scored by one only")[0] == 12.0
    assert figure(rows, "against", "disagree")[0] == 0.0


@pytest.mark.slow
def test_a_second_function_and_the_rows_on_which_they_disagree_most(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del project
    arguments = ["my.py:seven", NAME, "--against", "my.py:not_seven"]
    rows = tried(capsys, *arguments)
    assert figure(rows, "against", "disagree")[0] == 60.0
    assert figure(rows, "against", "rank correlation")[0] == pytest.approx(-1.0)
    accuracy, _ = figure(rows, "correct", "accuracy")
    assert accuracy == figure(rows, "score", "mean")[0]
    worst = [row for row in rows if row["part"] == "disagreement"]
    assert len(worst) == 5
    assert all({row["value"], row["other"]} == {0.0, 1.0} for row in worst)
    assert worst[0]["text"] in PROMPTS.values()
    assert cli.main(["reward", "try", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "60 of 60 rollouts of quickstart-0123abcd, iterations 1 to 3" in printed
    assert "- its sign is flipped against my.py:not_seven" in printed
    assert all(len(line) <= 100 for line in printed.splitlines()), "as wide as the terminal"


@pytest.mark.slow
def test_options_and_batch_functions(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del project
    rows = tried(capsys, "my.py:length_option", "latest", "--option", "factor=2.0")
    plain = tried(capsys, "my.py:length")
    assert figure(rows, "score", "max")[0] == pytest.approx(
        200 * (figure(plain, "score", "max")[0] or 0.0)
    )
    rows = tried(capsys, "my.py:of_group", "latest", "--batch")
    assert figure(rows, "score", "max")[0] == 1.0
    assert figure(rows, "groups", "prompts")[0] == len(PROMPTS) * ITERATIONS


@pytest.mark.parametrize(
    ("asked", "given"), [(1, 4), (8, 8), (15, 12), (22, 20), (60, 60), (0, 60)]
)
def test_rows_are_whole_prompts_from_the_whole_run(
    asked: int, given: int, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del project
    rows = tried(capsys, "my.py:mixed", NAME, "-n", str(asked))
    assert figure(rows, "rows", "rows")[0] == given
    assert figure(rows, "groups", "prompts")[0] == given / SAMPLES
    assert figure(rows, "against", "disagree")[0] == 0.0


def test_a_recipe_needs_no_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "turned.py").write_text(
        "def f(data_source, solution, ground_truth, extra_info):\n"
        "    return -float(solution.split()[-1] == ground_truth)\n"
    )
    against = ["--against", "arithmetic", *few_rows(store="nowhere")]
    rows = tried(capsys, "turned.py:f", "quickstart", "-n", "40", *against)
    assert figure(rows, "rows", "rows")[0] == 40.0
    sentences = found(rows)
    assert sum(text.startswith("its sign is flipped: the answers of") for text in sentences) == 1
    assert not (project / "nowhere").exists()


def test_a_judge_of_the_recipe_is_asked_and_nothing_is_kept(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with judge_server(says("2")) as server:
        judge = {
            "url": server.url,
            "model": "judge",
            "template": "{prompt} {response}",
            "key_env": "PLANTED_KEY",
            "scale": [0, 4],
            "max_calls": 100,
        }
        path = project / "runs" / NAME / "recipe.yaml"
        recipe = yaml.safe_load(path.read_text())
        recipe["judges"] = {"main": judge}
        recipe["reward"]["functions"].append({"name": "judge", "options": {"judge": "main"}})
        path.write_text(yaml.safe_dump(recipe))
        before = listing(project / "runs")
        rows = tried(capsys, "judge", NAME, "-n", "8", "--option", "judge=main")
        assert len(server.requests) == 8
    assert figure(rows, "score", "mean")[0] == 0.5
    assert found(rows)[0].startswith("it is constant: all 8 scored rows have 0.5")
    assert listing(project / "runs") == before


@pytest.mark.slow
def test_a_function_of_the_recipe_is_tried_as_it_stands_there(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its options, on the rows of its data sources; the others are counted."""
    path = project / "runs" / NAME / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text())
    own = {"name": str(project / "my.py:length_option"), "options": {"factor": 3.0}}
    recipe["reward"]["functions"] = [own]
    path.write_text(yaml.safe_dump(recipe))
    rows = tried(capsys, "my.py:length_option")
    most = max(len(text) for i in range(1, ITERATIONS + 1) for text in sampled(i)["response"])
    assert figure(rows, "score", "max")[0] == 3.0 * most
    own["data_sources"] = ["another"]
    path.write_text(yaml.safe_dump(recipe))
    assert cli.main(["reward", "try", "my.py:length_option", NAME]) == 2
    assert "scores none of the rows" in capsys.readouterr().err


def test_a_run_that_took_its_policy_from_the_store_has_the_rollouts_of_who_made_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its result may be from the cache, and its records of a run that other code continued."""
    later = "quickstart-ffffffff"
    (project / "runs" / NAME).rename(project / "runs" / later)
    row = stage_record(later, "rl", kind="policy", key="p", sha256="d")
    store = ArtifactStore(project / "runs" / "store")
    record_stage(store, replace(row, records_key="k", cached=True), Lineage("r", "c"))
    rows = tried(capsys, "my.py:mixed")
    assert figure(rows, "against", "scored by both")[0] == 60.0
    assert figure(rows, "against", "disagree")[0] == 0.0


REFUSED = {
    ("my.py:mixed", "quickstart-999"): "'quickstart-999' is neither a run in runs nor a recipe",
    ("my.py:mixed", "empty-4567abcd"): "the run 'empty-4567abcd' has no stage recorded",
    ("my.py:missing", NAME): "has no missing()",
    ("gone.py:f", NAME): "there is no file",
    ("gsm9k", NAME): "name = 'gsm9k' is not a reward function",
    ("gsm8k", NAME, "--option", "mood=strict"): "options.mood is not an option of 'gsm8k'",
    ("my.py:length_option", NAME): "factor",
    ("reward_model", NAME): "'reward_model' is no function",
    ("judge", NAME, "--option", "judge=x"): "recipe 'quickstart' has no judge of that name",
    ("my.py:mixed", NAME, "-n", "-1"): "-n -1 is not a number of rows",
    ("my.py:mixed", NAME, "--against", "my.py:gone"): "has no gone()",
    ("my.py:mixed", "quickstart", "--against", "recorded", *few_rows()): "--against recorded: no",
    ("my.py:mixed", "bare.yaml"): "has no demonstration with a ground truth",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda given: " ".join(given[:4]))
def test_bad_input_ends_in_a_sentence(
    arguments: tuple[str, ...], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = project / "runs" / "empty-4567abcd"
    empty.mkdir()
    (empty / "recipe.yaml").write_bytes((project / "runs" / NAME / "recipe.yaml").read_bytes())
    row = {"prompt": "2 + 2?", "ground_truth": "4", "data_source": "d", "split": "train"}
    (project / "rows.jsonl").write_text(json.dumps(row))
    source = {"kind": "file", "path": str(project / "rows.jsonl"), "split": "train"}
    (project / "bare.yaml").write_text(
        yaml.safe_dump({"extends": "quickstart", "data": {"sources": [source]}})
    )
    assert cli.main(["reward", "try", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert REFUSED[arguments] in said
    assert "reward.functions[0]" not in said, "the command line names no place in a recipe"
