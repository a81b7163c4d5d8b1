"""Recipe section ``environment``: what answers the policy between its turns."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from pydantic import Field

from schemas.algorithm import Options
from schemas.names import is_file, portable_name
from schemas.section import Section, rule, setting

MCP = "mcp"
GAMES = ("text-game",)
TOOLS = ("calculator", "python", MCP)
ENVIRONMENTS = (*TOOLS, *GAMES)
TURNS_OF_TOOLS, TURNS_OF_GAMES = 4, 50  # AlphaApollo's max_steps for math, and for all else
TURN_OVERHEAD = 32  # tokens that a chat template may put around an observation


class EnvironmentSection(Section):
    """An episode of several turns: the policy acts, the environment answers
    (docs/start/own_environment.md).

    A turn may have ``rl.rollout.max_new_tokens`` tokens, in evaluation those of
    ``evaluate.max_new_tokens``.
    """

    name: str = Field(
        description=f"{', '.join(ENVIRONMENTS)}, 'package.module:Class', or 'path/to/file.py:Class'"
        " from the recipe's folder"
    )
    options: Options = Field(default_factory=dict, description="keyword arguments of the class")
    command: tuple[str, ...] = setting(
        (),
        "mcp only: program and arguments of the server, on stdio; Python files from the"
        " recipe's folder",
    )
    version: str = setting("", "mcp only: names what the server does; another one is another run")
    max_turns: int | None = setting(
        None,
        f"most turns of the policy; null = {TURNS_OF_TOOLS}, {TURNS_OF_GAMES} in a game of ours",
        ge=1,
    )
    max_observation_tokens: int = setting(
        256, "tokens of one answer of the environment; the rest is cut", ge=1
    )
    invalid_action_penalty: float = setting(
        0.1, "taken off at each turn that the environment cannot read; 0 = none", ge=0
    )
    timeout_s: float = setting(
        10.0, "seconds of one step; then that is what the policy is told", gt=0
    )
    memory_gib: float | None = setting(
        4.0, "address space (GiB) of one worker, not of an MCP server; null = no limit", gt=0
    )
    concurrency: int = setting(16, "steps under way at once in one worker", ge=1, le=1024)
    workers: int = setting(1, "processes that the episodes are divided over", ge=1)
    env: tuple[str, ...] = setting(
        (), "environment variables passed to it besides PATH, HOME, locale and the like"
    )

    @property
    def turns(self) -> int:
        """Most turns of the policy in one episode."""
        return self.max_turns or (TURNS_OF_GAMES if self.name in GAMES else TURNS_OF_TOOLS)

    @property
    def identity(self) -> dict[str, Any]:
        """What results depend on."""
        part = self.model_dump(mode="json", exclude={"workers", "concurrency", "memory_gib"})
        # Without the machine's folders: the program, and files whose content is in the keys.
        command = [
            PurePath(word).name if index == 0 or is_file(word) else word
            for index, word in enumerate(self.command)
        ]
        own = {"name": portable_name(self.name), "command": command, "max_turns": self.turns}
        return {**part, **own}

    def tokens(self, prompt: int, turn: int) -> int:
        """Return the longest episode in tokens, of a ``prompt`` and turns of ``turn`` tokens."""
        return prompt + self.turns * turn + (self.turns - 1) * self.observation

    def turns_of(self, path: str) -> str:
        """Return in words what follows a prompt at most; a turn has the tokens of ``path``."""
        return (
            f"{self.turns} turns of {path} + {self.turns - 1} answers of {self.observation}"
            f" (environment.max_observation_tokens + {TURN_OVERHEAD} of the chat template)"
        )

    @property
    def observation(self) -> int:
        """Most tokens between two turns: an observation, and what the template puts around it."""
        return self.max_observation_tokens + TURN_OVERHEAD

    @rule
    def _command_is_of_mcp(self) -> Iterator[str]:
        if self.name == MCP and not self.command:
            yield "name = 'mcp' needs the server's program; set command, e.g. [python, server.py]"
        if self.name != MCP and (self.command or self.version):
            key = "command" if self.command else "version"
            yield f"{key} is set and name = {self.name!r} starts no server; leave it out"
        if self.name == MCP and self.options:
            yield (
                f"options = {self.options} and name = 'mcp' has no class that takes them; write"
                " them into command"
            )
