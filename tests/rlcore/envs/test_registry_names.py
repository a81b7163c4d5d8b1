"""What of a recipe's MCP server counts in cache keys, and what its section refuses."""

from pathlib import Path

import pytest

from rlcore.envs.registry import environment_names
from rlcore.recipes.load import load_recipe
from rlcore.rewards.registry import code_digests
from schemas.environment import EnvironmentSection

RECIPES = Path(__file__).parents[3] / "flows" / "recipes"


def test_a_servers_files_count_in_keys_wherever_they_lie(tmp_path: Path) -> None:
    """A changed tool gives the cached result of the old one; a moved one runs everything again."""
    digests = []
    for folder, text in (("a", "x = 1"), ("b", "x = 1"), ("c", "x = 2")):
        (tmp_path / folder).mkdir()
        server = tmp_path / folder / "server.py"
        server.write_text(text)
        changed = {"name": "mcp", "command": ["python", str(server)], "max_turns": 1}
        sources = {"data.sources": [{"kind": "file", "path": "rows.jsonl"}]}
        recipe = load_recipe(
            "calculator-grpo",
            {**{f"environment.{k}": v for k, v in changed.items()}, **sources},
            directory=RECIPES,
        )
        digests.append(code_digests(environment_names(recipe)))
    assert list(digests[0]) == ["server.py:mcp"]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_keys_hold_no_folder_of_the_machine() -> None:
    """The same server at another place makes a run start from the beginning."""
    one, other = (
        EnvironmentSection(
            name="mcp",
            command=(f"{folder}/python", f"{folder}/server.py", "--unit", "/in"),
            version="1",
        )
        for folder in ("/here", "/there")
    )
    assert one.identity == other.identity
    assert one.identity["command"] == ["python", "server.py", "--unit", "/in"]
    assert one.identity != one.model_copy(update={"version": "2"}).identity


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"name": "mcp"}, r"set command, e\.g\. \[python, server\.py\]"),
        ({"name": "python", "command": ["x"]}, "command is set and name = 'python' starts no"),
        ({"name": "mcp", "command": ["x"], "options": {"a": 1}}, "write them into command"),
    ],
)
def test_what_cannot_go_together_is_refused(section: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EnvironmentSection.model_validate(section)
