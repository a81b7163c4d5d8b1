"""Settings of verl for episodes of several turns: its own ``multi_turn`` and AlphaApollo's ``env``.

Lengths too: they depend on how many turns follow a prompt.
"""

import re
from typing import Any

from rlcore.verl.settings import ACTOR, ROLLOUT, VerlRun
from schemas.environment import ENVIRONMENTS, EnvironmentSection

ENV_NAME, STEPS, TURNS = "env.env_name", "env.max_steps", f"{ROLLOUT}.multi_turn"
TOOLS = f"{TURNS}.tool_config_path"
PENALTY = f"{ACTOR}.invalid_action_penalty_coef"
PENALTY_SWITCH = f"{ACTOR}.use_invalid_action_penalty"
_PROGRAMS = re.compile(r"sandbox|retool|code_interpreter|python", re.IGNORECASE)
_CHARACTERS = 4  # of a token, about, in English


def lengths(run: VerlRun) -> tuple[int, int]:
    """Return the longest prompt and the longest response, in tokens; verl's default is 512 each."""
    return run.count("data.max_prompt_length", 512), run.count("data.max_response_length", 512)


def longest(run: VerlRun) -> int:
    """Return the tokens of the longest sequence: a prompt, and a response or an episode."""
    prompt, response = lengths(run)
    section = _section(run)
    name = _name(run)
    if name is None:
        return prompt + response
    return EnvironmentSection.model_validate({"name": name, **section}).tokens(prompt, response)


def environment(run: VerlRun) -> dict[str, Any]:
    """The environment, where we have one that does what the run's does; else how to write it."""
    if not (run.has(ENV_NAME) or run.flag(f"{TURNS}.enable")):
        for key in (PENALTY_SWITCH, PENALTY, STEPS):
            if run.has(key):
                run.note(
                    f"{key} is left out: the run has no environment, so an episode is one turn"
                )
        return {}
    name, section = _name(run), _section(run)
    if name is None:
        run.notes.differs.append(_how_to_write(run, section))
        return {}
    whose = ENV_NAME if run.has(ENV_NAME) else TOOLS
    run.note(
        f"{whose} = {run.get(whose)}: the tool python, which runs a program in this machine's own"
        " sandbox; a call is text, <tool_call>{json}</tool_call>, and other tools have no"
        " counterpart"
    )
    _note_sizes(run)
    return {f"environment.{key}": value for key, value in {"name": name, **section}.items()}


def _name(run: VerlRun) -> str | None:
    """Return our environment that does what the run's does; None where there is none."""
    if run.has(ENV_NAME):
        return "python" if str(run.get(ENV_NAME)).startswith("informal_math") else None
    if not run.flag(f"{TURNS}.enable"):
        return None
    return "python" if _PROGRAMS.search(str(run.get(TOOLS, ""))) else None


def _section(run: VerlRun) -> dict[str, Any]:
    """Return the other keys of our section that the run sets."""
    section: dict[str, Any] = {}
    for key in (STEPS, f"{TURNS}.max_assistant_turns", f"{TURNS}.max_turns"):
        if run.has(key):
            section["max_turns"] = run.count(key, 1)
    if run.has(f"{TURNS}.max_tool_response_length"):
        characters = run.count(f"{TURNS}.max_tool_response_length", 256)
        section["max_observation_tokens"] = max(1, characters // _CHARACTERS)
    # AlphaApollo penalises unless told otherwise; verl itself has no such penalty.
    is_penalised = run.flag(PENALTY_SWITCH, run.has(ENV_NAME))
    section["invalid_action_penalty"] = run.number(PENALTY, 0.1) if is_penalised else 0.0
    return section


def _note_sizes(run: VerlRun) -> None:
    """Note what is counted otherwise there."""
    prompt, response = lengths(run)
    of_an_episode = "" if run.has(ENV_NAME) else ", and of a whole episode in verl"
    run.note(
        f"data.max_response_length = {response}: of one turn{of_an_episode}; with the answers"
        f" between the turns an episode has at most {longest(run)} tokens, {prompt} of them the"
        " prompt"
    )
    key = f"{TURNS}.max_tool_response_length"
    if run.has(key):
        run.note(
            f"{key} = {run.get(key)} is in characters: environment.max_observation_tokens ="
            f" {_section(run)['max_observation_tokens']} counts {_CHARACTERS} to a token"
        )
    if (form := str(run.get(f"{TURNS}.format", "hermes"))) != "hermes":
        run.notes.differs.append(
            f"{TURNS}.format = {form}: calls are read in the form of Hermes only; the chat template"
            " must show that form"
        )


def _how_to_write(run: VerlRun, section: dict[str, Any]) -> str:
    """Return what to do about an environment that we do not have."""
    written = ", ".join(f"{key}: {value}" for key, value in section.items())
    what = (
        f"{ENV_NAME} = {run.get(ENV_NAME)}: there is no such environment here (there are"
        f" {', '.join(ENVIRONMENTS)})"
    )
    how = "it as a class with reset(row, seed) and step(text)"
    if not run.has(ENV_NAME):
        tools = f" of {run.get(TOOLS)}" if run.has(TOOLS) else ""
        what = f"{TURNS}.enable = True: the tools{tools} are not read"
        how = "them as typed, documented methods of a class, or name an MCP server's command"
    return (
        f"{what}, so an episode has one turn; write {how} (docs/start/own_environment.md) and add"
        f" the section environment: {{name: 'package.module:Class', {written}}}"
    )
