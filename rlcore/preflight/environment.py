"""Whether the recipe's environment can be built here, and its episodes told to the model."""

from pathlib import Path

from rlcore.data.turns import TurnEncoder
from rlcore.envs.names import BUILTIN
from rlcore.envs.process import describe
from rlcore.envs.registry import check_name
from rlcore.models.tokenizer import load_tokenizer
from schemas.environment import MCP
from schemas.recipe import Recipe


def check_environment(recipe: Recipe) -> None:
    """Raise UserError for an environment that cannot be built, or a chat template that cannot carry
    its episodes.

    A class of the user is imported in a child process. On an existing cluster, where modules and
    variables may be others, only its name is looked at. The template of a hub model is looked at
    when the run reads it.
    """
    section = recipe.environment
    if section is None:
        return
    if section.name != MCP:
        check_name(section.name)
    ours = section.name in BUILTIN and not section.options
    if recipe.hardware.ray_address is not None and not ours:
        return
    model = recipe.model
    directory = None if model.path is None else Path(model.path).expanduser()
    if ours and (directory is None or not directory.is_dir()):
        return
    tools = describe(section).tools
    if directory is not None and directory.is_dir():
        tokenizer = load_tokenizer(
            directory,
            name=str(model.path),
            trust_remote_code=model.trust_remote_code,
            chat_template=model.chat_template,
        )
        TurnEncoder(tokenizer, tools, section.max_observation_tokens).check()
