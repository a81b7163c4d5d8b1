"""The preview is what SFT and RL read: a preview of something else would be worse than none."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flows.paths import RECIPES
from rlcore.data.prepare import prepare
from rlcore.data.preview import BOUNDARY, example_lines, preview
from rlcore.models.base import build_base_model, copy_base_model
from rlcore.models.tokenizer import load_tokenizer
from rlcore.plan.reward_trial import sample_rows
from rlcore.recipes.load import load_recipe
from schemas.errors import UserError
from schemas.model import FromScratch, ModelSection

# Another form than the tokenizer's own: who reads the model's template sees other tokens.
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def rows(count: int) -> str:
    chats = (
        {
            "messages": [
                {"role": "user", "content": f"Wieviel ist {n}² – naïve Rechnung?"},
                {"role": "assistant", "content": f"{n}·{n} = {n * n}\n"},
                {"role": "user", "content": "Sicher?"},
                {"role": "assistant", "content": f"#### {n * n}"},
            ],
            "ground_truth": str(n * n),
        }
        for n in range(count)
    )
    return "".join(json.dumps(chat) + "\n" for chat in chats)


def test_a_model_of_ones_own_shows_the_recipes_template(tmp_path: Path) -> None:
    scratch = FromScratch(hidden_size=32, num_layers=1, num_heads=1, num_kv_heads=1, vocab_size=300)
    model = ModelSection(from_scratch=scratch, dtype="float32", max_tokens=512)
    build_base_model(model, tmp_path / "own", texts=["Wieviel ist das?"], seed=0)
    for name, count in (("train", 24), ("test", 4)):
        (tmp_path / f"{name}.jsonl").write_text(rows(count))
    sources = [
        {"kind": "file", "path": str(tmp_path / f"{split}.jsonl"), "split": split}
        for split in ("train", "test")
    ]
    overrides = {
        "model": {"path": str(tmp_path / "own"), "chat_template": TEMPLATE, "max_tokens": 512},
        "data": {"sources": sources, "validation_fraction": 0.2, "decontaminate": False},
        "data.max_prompt_tokens": 200,
        "data.deduplicate": "exact",
        "sft.max_tokens": 500,
    }
    recipe = load_recipe("quickstart", overrides, directory=RECIPES)
    shown = preview(recipe, 3)
    base = copy_base_model(recipe.model, tmp_path / "own", tmp_path / "base")
    made = prepare(
        recipe.data, tokenizer=load_tokenizer(base), seed=recipe.seed, sft_max_tokens=500
    )
    for name, table in made.tables.items():
        assert shown.prepared.tables[name].equals(table), name
    train = made.tables["demonstrations"].filter(pl.col("split") == "train").head(3)
    assert shown.demonstrations == train.to_dicts()
    first = list(example_lines(shown.demonstrations[0], shown.tokenizer))
    assert first[1].startswith("    [user] Wieviel")
    assert any(
        line.endswith("[assistant] ") for line in example_lines(shown.prompts[0], shown.tokenizer)
    )


def test_rows_that_the_environment_makes_are_shown() -> None:
    recipe = load_recipe("text-game-grpo", {}, directory=RECIPES)
    assert len(preview(recipe, 2).prompts) == 2
    with pytest.raises(UserError, match="has no demonstration with a ground truth"):
        sample_rows(recipe, most=4)


def test_a_row_shows_boundaries_mask_and_ids_and_no_control_characters() -> None:
    class Tokenizer:
        def decode(self, ids: list[int]) -> str:
            return "".join({5: "a", 6: "b\x1b\n", 7: "c"}[token] for token in ids)

    row = {"uid": "u", "data_source": "s", "token_ids": [5, 6, 7], "loss_mask": [False, True, True]}
    tokenizer: Any = Tokenizer()
    assert list(example_lines(row, tokenizer)) == [
        "s, uid u: 3 tokens, 2 of them learnt",
        "    ab\\x1b",
        "    c",
        f"  read    a{BOUNDARY}",
        "  ids     5 ",
        f"  learnt  b\\x1b\\n{BOUNDARY}c{BOUNDARY}",
        "  ids     6 7 ",
    ]
