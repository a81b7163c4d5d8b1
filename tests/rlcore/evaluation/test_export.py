"""What is published is the policy, whole, and loads where people will load it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlcore.evaluation.export import export_model
from schemas.errors import UserError
from tests.rlcore.evaluation.cards import card, policy


@pytest.mark.parametrize(
    ("dtype", "tied"),
    [(None, True), ("float32", False), ("bfloat16", True)],
)
def test_the_export_is_the_policy(tmp_path: Path, dtype: str | None, tied: bool) -> None:
    source_dir = policy(tmp_path / "policy", tie_word_embeddings=tied)
    record = export_model(source_dir, tmp_path / "out", dtype=dtype, card=card())
    wanted = dtype or "float32"
    source = AutoModelForCausalLM.from_pretrained(source_dir, dtype=wanted)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.randint(0, source.config.vocab_size, (2, 17))
    with torch.no_grad():
        # Equal weights at other addresses: rounding is a CPU's own.
        rounding = 1e-4 if wanted == "float32" else 0.05
        torch.testing.assert_close(
            source(ids).logits, loaded(ids).logits, rtol=rounding, atol=rounding
        )
    assert str(loaded.dtype) == f"torch.{wanted}"
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as tensors:
        assert ("lm_head.weight" in tensors.keys()) != tied  # noqa: SIM118  # not a dict
    assert record["tied"] is tied
    assert record["logits_max_abs_diff"] <= rounding
    assert record["parameters"] == source.num_parameters()
    before = AutoTokenizer.from_pretrained(source_dir)
    after = AutoTokenizer.from_pretrained(tmp_path / "out")
    chat = [{"role": "user", "content": "What is 7 + 5?"}]
    assert before.apply_chat_template(chat) == after.apply_chat_template(chat)
    assert loaded.generation_config.eos_token_id == before.eos_token_id
    assert json.loads((tmp_path / "out" / "export.json").read_text()) == record
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"config.json", "generation_config.json", "tokenizer.json", "README.md"}
    assert not list(tmp_path.glob(".out*")), "the hidden sibling stays behind"


@pytest.mark.slow
def test_a_killed_export_leaves_nothing_and_the_next_one_succeeds(
    policy_dir: Path, tmp_path: Path
) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[3])\n"
        "from rlcore.evaluation import export\n"
        "from tests.rlcore.evaluation.cards import card\n"
        "export.put_in_place = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "export.export_model(Path(sys.argv[1]), Path(sys.argv[2]), dtype=None, card=card())\n"
    )
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here.parents[2]}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, policy_dir, tmp_path / "out", here],
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == -9
    assert not (tmp_path / "out").exists()
    assert (tmp_path / ".out.partial").exists(), "the kill came too early to test anything"
    export_model(policy_dir, tmp_path / "out", dtype=None, card=card())
    assert not list(tmp_path.glob(".out*"))


def test_a_directory_that_is_no_export_is_not_replaced(policy_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(
        UserError, match=r"exists and is not an earlier export .* give a new or empty"
    ):
        export_model(policy_dir, out, dtype=None, card=card())
    assert (out / "thesis.tex").read_text() == "years of work"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_export_loads_in_vllm(policy_dir: Path, tmp_path: Path) -> None:
    """Greedy tokens of real vLLM are the likeliest of transformers, to within rounding."""
    from rlcore.engines.types import EngineSpec
    from rlcore.engines.vllm_engine import engine_env

    out = tmp_path / "out"
    export_model(policy_dir, out, dtype="float32", card=card())
    tokenizer = AutoTokenizer.from_pretrained(out)
    chat = [{"role": "user", "content": "What is 7 + 5?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    model: Any = AutoModelForCausalLM.from_pretrained(out)
    # 'auto' would take float32 down to bfloat16, whose rounding can turn a choice.
    script = (
        "import json, sys\n"
        "from vllm import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1], dtype='float32', enforce_eager=True, max_model_len=128)\n"
        "sampling = SamplingParams(temperature=0, max_tokens=12)\n"
        "chat = json.loads(sys.argv[2])\n"
        "output = llm.chat(chat, sampling, use_tqdm=False)[0]\n"
        "print('RESULT', json.dumps([output.prompt_token_ids, output.outputs[0].token_ids]))\n"
    )
    spec = EngineSpec(model_dir=str(out), device="cpu")
    environment = os.environ | engine_env(spec) | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(out), json.dumps(chat)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert found, f"vLLM did not load the export:\n{done.stderr[-2000:]}"
    prompt_ids, token_ids = json.loads(found[0].removeprefix("RESULT"))
    assert prompt_ids == prompt, "vLLM renders the exported chat template differently"
    with torch.no_grad():
        logits = model(torch.tensor([prompt + token_ids])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(-1, torch.tensor(token_ids)[:, None])[:, 0]
    assert float((logits.max(-1).values - chosen).max()) < 1e-3
