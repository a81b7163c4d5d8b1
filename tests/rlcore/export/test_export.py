"""What is published is the policy, whole, and loads where people will load it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import yaml
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlcore.export.export import export_model
from rlcore.export.model_card import LineageRow, ModelCard, escape_markdown
from rlcore.export.publish import ExportError, write_verified
from rlcore.models.base import build_base_model
from schemas.errors import UserError
from schemas.recipe import FromScratch, ModelSection
from schemas.tables import EvalResults

TEXTS = [f"What is {a} + {b}? {a}+{b}={a + b}\n#### {a + b}" for a in range(40) for b in range(40)]


def policy(directory: Path, **shape: Any) -> Path:
    # vLLM on CPU wants heads of at least 32
    sizes = {"hidden_size": 64, "num_heads": 2, "num_kv_heads": 1, "max_position_embeddings": 256}
    section = ModelSection(
        from_scratch=FromScratch.model_validate(sizes | shape), dtype="float32", max_tokens=256
    )
    return build_base_model(section, directory, texts=TEXTS, seed=0)


@pytest.fixture(scope="module")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy(tmp_path_factory.mktemp("policy") / "model")


def results() -> pl.DataFrame:
    rows = [
        (checkpoint, source, subset, metric, value, value - 0.05, value + 0.05, 512, 512)
        for checkpoint, value in (("sft", 0.6), ("rl", 0.9))
        for source, subset in (("openai/gsm8k", "test"), ("all", "all"))
        for metric in ("greedy/acc", "sampled/pass@4", "greedy/response_length/mean")
    ]
    schema = EvalResults.to_schema().columns
    return EvalResults.validate(
        pl.DataFrame(rows, schema=list(schema), orient="row").with_columns(
            pl.col("num_prompts", "num_samples").cast(pl.Int64)
        )
    )


def card(**changes: Any) -> ModelCard:
    facts: dict[str, Any] = {
        "name": "quickstart",
        "checkpoint": "rl",
        "results": results(),
        "lineage": (
            LineageRow("prepare_data", "dataset", "a1b2", "0" * 64),
            LineageRow("rl", "policy", "c3d4/000007", "f" * 64),
        ),
        "base_model": "Qwen/Qwen2.5-0.5B-Instruct",
        "datasets": ("openai/gsm8k", "arithmetic"),
        "training": {"algorithm": "grpo", "iterations": "100"},
        "evaluation": {"seed": "0", "temperature": "1.0"},
    }
    return ModelCard(**(facts | changes))


def front_matter(directory: Path) -> dict[str, Any]:
    text = (directory / "README.md").read_text()
    return yaml.safe_load(text.split("---\n")[1])


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


def test_large_weights_are_sharded(policy_dir: Path, tmp_path: Path) -> None:
    proof = write_verified(policy_dir, tmp_path, dtype=None, shard_size="100KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 1
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert proof.logits_max_abs_diff <= 1e-4


def test_the_card_is_what_the_hub_reads(policy_dir: Path, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard as HubCard

    export_model(policy_dir, tmp_path / "out", dtype=None, card=card())
    data: Any = HubCard.load(tmp_path / "out" / "README.md").data
    assert data.base_model == "Qwen/Qwen2.5-0.5B-Instruct"
    assert data.datasets == ["openai/gsm8k"], "a generated source is no dataset of the hub"
    assert data.license == "unknown"
    assert data.eval_results is not None
    found = {(r.metric_type, r.metric_name, r.metric_value) for r in data.eval_results}
    assert found == {("accuracy", "greedy/acc", 0.9), ("pass@k", "sampled/pass@4", 0.9)}
    text = (tmp_path / "out" / "README.md").read_text()
    for line in (
        "| openai/gsm8k | test | greedy/acc |"
        r" 0.600 \[0.550, 0.650\] | 0.900 \[0.850, 0.950\] | 512 |",
        rf"| rl | policy | c3d4/000007 | {'f' * 64} |",
        "* algorithm: grpo",
        "* temperature: 1.0",
    ):
        assert line in text, f"missing from the card: {line}\n{text}"


def test_text_from_outside_cannot_change_the_card(policy_dir: Path, tmp_path: Path) -> None:
    """A data set's name must not end up as markup or metadata on somebody's hub page."""
    evil = "x|y\n---\nlicense: mit\n<script>alert(1)</script> [click](http://evil) `{{ 7*7 }}`"
    changed = card(name=evil, training={evil: evil}, base_model=evil, datasets=(evil,))
    export_model(policy_dir, tmp_path / "out", dtype=None, card=changed)
    text = (tmp_path / "out" / "README.md").read_text()
    body = text.split("\n---\n", 1)[1]
    assert "<script>" not in body
    assert not re.search(r"(?<!\\)\]\(http", body), "a live link"
    assert "49" not in body.split("## Lineage")[0].split("## How it was trained")[1]
    assert "\n---\n" not in body
    data = front_matter(tmp_path / "out")
    assert data["license"] == "unknown"
    assert "base_model" not in data
    assert "datasets" not in data


def test_escaped_text_stays_on_one_line_and_keeps_its_words() -> None:
    assert escape_markdown("a|b\n<i>*x*</i> & `c`") == r"a\|b &lt;i&gt;\*x\*&lt;/i&gt; &amp; \`c\`"


def test_a_path_of_this_machine_stays_out_of_the_card(policy_dir: Path, tmp_path: Path) -> None:
    local = card(base_model=str(policy_dir), datasets=(str(tmp_path),))
    export_model(policy_dir, tmp_path / "out", dtype=None, card=local)
    assert str(policy_dir.parent) not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("file", "damage", "sentence"),
    [
        ("model.safetensors", "weights", "weights of the reloaded model differ"),
        ("config.json", "rms_norm_eps", "configuration of the reloaded model differ"),
        ("generation_config.json", "eos", "generation_config of the reloaded model differ"),
        ("chat_template.jinja", "template", r"chat template \(sha256\) of the reloaded model"),
        ("tokenizer.json", "tokens", "of the reloaded model differ"),
    ],
)
def test_any_difference_publishes_nothing(
    policy_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    damage: str,
    sentence: str,
) -> None:
    """Saving is made to go wrong the way a library bug would; the old export must survive."""
    from rlcore.export import publish

    out = tmp_path / "out"
    export_model(policy_dir, out, dtype=None, card=card())
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    load = publish._load

    def load_damaged(directory: Path, *args: Any) -> Any:
        if directory.name == ".out.partial":
            _damage(directory / file, damage)
        return load(directory, *args)

    monkeypatch.setattr(publish, "_load", load_damaged)
    with pytest.raises(ExportError, match=sentence) as error:
        export_model(policy_dir, out, dtype=None, card=card())
    assert "nothing was published" in str(error.value)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(("factor", "published"), [(1 + 2e-7, True), (1.01, False)])
def test_only_rounding_may_move_the_logits(
    policy_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    published: bool,
) -> None:
    """Equal weights at other addresses round differently on some CPUs. A buffer that no file holds
    moves the logits here, and neither weights nor configuration show it."""
    from rlcore.export import publish

    load = publish._load

    def load_moved(directory: Path, *args: Any) -> Any:
        model = load(directory, *args)
        if directory == tmp_path:
            model.model.rotary_emb.inv_freq.mul_(factor)
        return model

    monkeypatch.setattr(publish, "_load", load_moved)
    if not published:
        with pytest.raises(ExportError, match="logits: max abs difference of the reloaded model"):
            write_verified(policy_dir, tmp_path, dtype=None)
        return
    assert 0.0 < write_verified(policy_dir, tmp_path, dtype=None).logits_max_abs_diff < 1e-4


def _damage(path: Path, kind: str) -> None:
    from safetensors.torch import load_file, save_file

    if kind == "weights":
        state = load_file(path)
        state["model.norm.weight"][0] += 1e-3
        save_file(state, path, metadata={"format": "pt"})
    elif kind == "template":
        path.write_text(path.read_text() + " ")
    else:
        data = json.loads(path.read_text())
        if kind == "rms_norm_eps":
            data["rms_norm_eps"] = 1e-3
        elif kind == "eos":
            data["eos_token_id"] = 5
        else:
            vocabulary = data["model"]["vocab"]
            vocabulary["7"], vocabulary["8"] = vocabulary["8"], vocabulary["7"]
        path.write_text(json.dumps(data))


def test_a_killed_export_leaves_nothing_and_the_next_one_succeeds(
    policy_dir: Path, tmp_path: Path
) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[3])\n"
        "from rlcore.export import export\n"
        "from test_export import card\n"
        "export._replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "export.export_model(Path(sys.argv[1]), Path(sys.argv[2]), dtype=None, card=card())\n"
    )
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here.parents[2]}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, policy_dir, tmp_path / "out", here],
        env=environment,
        timeout=120,
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


def test_a_policy_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model in .*nothing cannot be loaded"):
        export_model(tmp_path / "nothing", tmp_path / "out", dtype=None, card=card())
    assert not (tmp_path / "out").exists()


def test_results_without_the_exported_checkpoint_are_refused(
    policy_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="no row of checkpoint 'ppo', only of sft, rl"):
        export_model(policy_dir, tmp_path / "out", dtype=None, card=card(checkpoint="ppo"))
    assert not list(tmp_path.iterdir())


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
        timeout=100,
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
