"""Nothing that a user can see gets lost by accident: ``behaviour.json`` is the promise."""

import json

from tests.golden.behaviour import GOLDEN, behaviour

# What differs from the promise on purpose: path -> why. Record again once a release has said it.
MEANT: dict[str, str] = {
    "keys/hardware.learner.attention": "sdpa_blocks is gone: nobody measured that it pays",
    "commands/ask/run": "one run: `compare` says what differs between two",
    "commands/compare/--md": "report writes the same tables, and --format csv their figures",
    "commands/explain/--format": "docs/recipe.schema.json is the JSON of all keys",
    "commands/lineage/--format": "mermaid: reports have the table, and JSON every edge",
    "recipes/quickstart-rlhf/rl.algorithm.kl.coef": "with .02 one seed of three over-optimised",
    "recipes/quickstart-rlhf/rl.iterations": "the last ten did not improve it",
    "commands/run/--dry-run": "the keys at their defaults are asked of `explain`",
    "commands/up/--runs": "left out it keeps the limit, which it set back to 1",
    "commands/worker/--runs": "as above",
    "commands/env": "gone: `doctor` says what of a machine matters",
    "commands/env/--format": "as above",
    "keys/retrain.metric": "win_rate: which answers a judge prefers",
    "keys/reward_model.preferences": "ranked_by: also by scores, or in pairs by a judge",
    "keys/rl.algorithm.kl.where": "monitor: measured only",
    "keys/rl.critic.init": "reward_model:NAME, one that is brought",
    "keys/rl.update.old_logprobs": "rollout: the log-probs of the sampler are the old ones",
    **dict.fromkeys(
        (
            "commands/replay/--trajectory",
            "commands/replay/--format",
            "documents/rl-pipeline replay latest 40 --trajectory UID",
        ),
        "an answer is no longer walked token by token",
    ),
    **dict.fromkeys(
        (
            "commands/export-data",
            *(f"commands/export-data/{name}" for name in ("run", "--form", "--out", "--runs")),
            "documents/rl-pipeline export-data latest --form trl",
            "documents/rl-pipeline export-data latest --form verl",
        ),
        "gone: the prepared rows are Parquet in the store, and tables of sql",
    ),
    **dict.fromkeys(
        ("commands/completion", "commands/completion/shell"),
        "gone: errors name the nearest recipe, key and run",
    ),
    **dict.fromkeys(
        ("commands/wandb", *(f"commands/wandb/{name}" for name in ("run", "--online", "--runs"))),
        "gone: a resumed run logs its earlier iterations again",
    ),
}


def test_everything_promised_is_still_there_and_says_the_same() -> None:
    promised = json.loads(GOLDEN.read_text(encoding="utf-8"))
    offered = behaviour()
    lost = {
        path: (text, offered.get(path))
        for path, text in promised.items()
        if offered.get(path) != text and path not in MEANT
    }
    assert not lost, f"{lost}: put the path into MEANT, if it is meant"


def test_the_table_covers_each_kind_of_promise() -> None:
    kinds = {path.split("/")[0] for path in behaviour()}
    assert kinds == {"commands", "keys", "tables", "recipes", "exit_codes", "documents"}
