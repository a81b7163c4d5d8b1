"""A model that ends its turns with several tokens, none of them the template's own end, is trained,
evaluated and exported with all of them; the dry run says which, and where each comes from."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flows.cli import main
from rlcore.models.tokenizer import load_tokenizer
from tests.flows.small_run import INLINE, run_small
from tests.rlcore.api.tiny import write_tiny_model

TURNS = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}"
    "{% if m.role == 'assistant' %}<|endoftext|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ENDLESS = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
OURS = {"from_scratch": None, "max_tokens": 96, "dtype": "float32"}
SHORT = {"data.max_prompt_tokens": 56, "sft.max_tokens": 96}


def overrides(path: Path, **more: Any) -> dict[str, Any]:
    model = {**OURS, "path": str(path), **more}
    return {**INLINE, **SHORT, **{f"model.{name}": value for name, value in model.items()}}


def planned(path: Path, capsys: pytest.CaptureFixture[str], **more: Any) -> tuple[int, str, str]:
    settings = [f"{name}={json.dumps(value)}" for name, value in more.items()]
    given = [f"{name}={json.dumps(value)}" for name, value in overrides(path).items()]
    words = [word for one in [*given, *settings] for word in ("-o", one)]
    code = main(["run", "quickstart", "--dry-run", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_dry_run_lists_what_ends_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_model(tmp_path / "model", chat_template=TURNS)
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 4], "temperature": 0.9}')
    more = {"model.stop_tokens": ["5"], "rl.rollout.stop": ["\n\n"], "evaluate.stop": ["####"]}
    code, text, _ = planned(path, capsys, **more)
    assert code == 0
    assert "stop token '<|end|>' (1): the tokenizer's eos_token, eos_token_id of gen" in text
    assert "stop token '<|endoftext|>' (0): the chat template's end of an assistant turn" in text
    assert "stop token '<|assistant|>' (4): eos_token_id of generation_config.json" in text
    assert ": model.stop_tokens" in text
    assert "stop strings of rl.rollout.stop: ['\\n\\n']" in text
    assert "stop strings of evaluate.stop: ['####']" in text
    code, _, said = planned(path, capsys, **{"model.stop_tokens": ["no such token"]})
    assert code != 0
    assert "model.stop_tokens[0] = 'no such token' is" in said


@pytest.mark.parametrize("learns", [True, False])
def test_a_template_without_an_end_is_told_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], learns: bool
) -> None:
    """SFT ended at its first demonstration, RL without SFT sampled every answer to its limit."""
    path = write_tiny_model(tmp_path / "model", chat_template=ENDLESS)
    code, text, said = planned(path, capsys, **{"sft.enabled": learns})
    assert (code == 0) is not learns
    assert "never writes a stop token behind an assistant turn" in (said if learns else text)
    scratch = ["-o", "model.chat_template=" + json.dumps(ENDLESS), "-o", f"sft.enabled={learns}"]
    assert (main(["run", "quickstart", "--dry-run", *scratch]) == 0) is not learns
    shown = capsys.readouterr()
    assert "never writes a stop token" in (shown.err if learns else shown.out)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_stages_end_an_answer_alike(prefect_server: str, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model", chat_template=TURNS)
    given = {"eos_token_id": [1, 4], "temperature": 0.9, "top_p": 0.6}
    (path / "generation_config.json").write_text(json.dumps(given))
    store = tmp_path / "runs" / "store"
    changes = {"rl.rollout.stop": [*"0123456789"], "rl.iterations": 2, "data.max_prompt_tokens": 80}
    done = run_small(tmp_path, {**overrides(path), **changes})
    assert done.returncode == 0, done.stdout[-3000:]
    tokenizer = load_tokenizer(path)
    (demonstrations,) = store.glob("dataset/*/demonstrations.parquet")
    last = pl.read_parquet(demonstrations)["token_ids"].list.last().unique().to_list()
    assert last == [0], "learnt up to the template's own end"
    rows = pl.concat(pl.read_parquet(file) for file in store.glob("rollouts/*/*/rollouts.parquet"))
    assert not rows["response"].str.contains(r"\d").any()
    stopped = rows.filter(pl.col("finish_reason") == "stop")
    ends = {str(tokenizer.decode(ids[-1:])) for ids in stopped["token_ids"].to_list()}
    assert any(character.isdecimal() for end in ends for character in end)
    special = {"<|endoftext|>", "<|end|>", "<|assistant|>"}
    assert all(end in special or any(map(str.isdecimal, end)) for end in ends)
    (completions,) = store.glob("evaluation/*/completions.parquet")
    assert not pl.read_parquet(completions)["response"].str.contains(r"\d").any()
    (exported,) = store.glob("export/*/model")
    written = json.loads((exported / "generation_config.json").read_text())
    assert sorted(written["eos_token_id"]) == [0, 1, 4]
    assert (written["do_sample"], written["temperature"], written["top_p"]) == (True, 0.9, 0.6)
    card = " ".join((exported / "README.md").read_text().split())
    assert "ends with one of the tokens" in card
    assert "a response also ends with: '0', '1'" in card
