"""``rl-pipeline data``: a wrong template or mask is seen before hours of SFT."""

import json
from pathlib import Path

import pytest

from flows.cli import main
from tests.rlcore.data.row_files import write

FEW = {
    "rl.rollout.prompts": "16",
    "data.sources.0.train": 16,
    "data.sources.0.validation": 4,
    "data.sources.0.test": 4,
    "data.sources.0.test_steps": 4,
    "data.sources.0.demonstrations": 32,
}


def arguments(**more: str) -> list[str]:
    given = {**FEW, **{key.replace("__", "."): value for key, value in more.items()}}
    return [part for key, value in given.items() for part in ("-o", f"{key}={value}")]


def test_it_prints_examples_and_the_datasheet_and_leaves_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert main(["data", "quickstart", "-n", "2", *arguments(store=str(store))]) == 0
    printed = capsys.readouterr().out
    assert "demonstration 2:" in printed
    assert "prompt 2:" in printed
    assert "prompt 3:" not in printed
    assert "│<|end|>│" in printed
    assert ["train", "arithmetic", "train", "16"] in [line.split() for line in printed.splitlines()]
    assert not store.exists()


def test_what_the_stage_would_refuse_ends_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "quickstart", *arguments(data__max_prompt_tokens="3")]) == 2
    assert "raise data.max_prompt_tokens" in capsys.readouterr().err
    assert main(["data", "quickstart", "-n", "-1"]) == 2


# Shows tools, any role and reasoning, which it reads under a name of its own.
TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function | tojson }}]{% endfor %}{% for m in messages %}"
    "<{{ m.role }}>{% if m.thinking %}({{ m.thinking }}){% endif %}{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_brought(folder: Path) -> tuple[str, ...]:
    """Write a demonstration in each of several forms; return the files' names."""
    asked = {"role": "user", "content": [{"type": "text", "text": "Parts?"}]}
    now = {"name": "now", "arguments": json.dumps({"zone": None})}
    calls = [{"function": now}, {"function": {"name": "day", "arguments": {}}}]
    zone = {"type": "string", "default": None}
    tool = {"name": "now", "description": "", "parameters": {"properties": {"zone": zone}}}
    turns = [
        {"role": "developer", "content": "Be brief."},
        asked,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "A clock.",
            "tool_calls": calls,
        },
        {"role": "tool", "content": "noon"},
        {"role": "assistant", "content": "It is noon."},
    ]
    said = [{"from": "human", "value": "Shared?"}, {"from": "gpt", "value": "Yes, shared."}]
    write(folder / "tools.jsonl.gz", [{"messages": turns, "tools": [{"function": tool}]}])
    write(folder / "sharegpt.ndjson", [{"conversations": said}])
    write(folder / "alpaca.json", [{"instruction": "Add.", "input": "2, 3", "output": "It is 5."}])
    (folder / "shards.parquet").mkdir()
    write(folder / "shards.parquet" / "part-0.parquet", [{"prompt": "Shard?", "completion": "0."}])
    written = str([{"role": "user", "content": "Written, as text?"}]).replace('"', '""')
    (folder / "rows.csv").write_text(f'prompt,completion\n"{written}",007\n')
    return ("tools.jsonl.gz", "sharegpt.ndjson", "alpaca.json", "shards.parquet", "rows.csv")


def test_what_people_bring_is_read_as_it_was_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read as anything else, it would be trained for hours."""
    monkeypatch.setenv("BROUGHT", str(tmp_path))
    names = write_brought(tmp_path)
    sources = [{"kind": "file", "path": f"$BROUGHT/{name}"} for name in names]
    few = {key.replace("data.sources.0.", ""): n for key, n in FEW.items() if "sources" in key}
    sources.append({"kind": "arithmetic", **few})
    given = {
        "data.sources": json.dumps(sources),
        "model.chat_template": json.dumps(TEMPLATE),
        "data.max_prompt_tokens": 300,
        "sft.max_tokens": 500,
        "model.max_tokens": 512,
        "model.from_scratch.max_position_embeddings": 512,
        "rl.rollout.prompts": 16,
    }
    settings = [part for key, value in given.items() for part in ("-o", f"{key}={value}")]
    assert main(["data", "quickstart", "-n", "6", *settings]) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out.replace("\n    ", "\n")
    end = "<|end|>"
    texts = (
        '"default": null}}}}]<system>Be brief.<user>Parts?<assistant>(A clock.)<tool_call>{"name":'
        f' "now", "arguments": {{"zone": null}}}}</tool_call>\n<tool_call>{{"name": "day",'
        f' "arguments": {{}}}}</tool_call>{end}<tool>noon<assistant>It is noon.{end}',
        f"<user>Shared?<assistant>Yes, shared.{end}",
        f"<user>Add.\n\n2, 3<assistant>It is 5.{end}",
        f"<user>Shard?<assistant>0.{end}",
        f"<user>Written, as text?<assistant>007{end}",
    )
    for text in texts:
        assert text in printed, printed
