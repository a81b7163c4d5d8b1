"""`rl-pipeline deploy`: a deployment for a recipe of one's own, wherever its file is."""

import argparse
from pathlib import Path
from typing import Any


def add_deploy(commands: Any) -> None:
    """Add the subcommand ``deploy`` to a command line's subparsers."""
    parser = commands.add_parser("deploy", help="make a deployment for a recipe file of your own")
    parser.add_argument("recipe", type=Path, help="path of a YAML file")
    parser.set_defaults(command=deploy)


def deploy(options: argparse.Namespace) -> int:
    """Bring everything up, deploy the recipe, say how to run it; return 0.

    Raises UserError as ``load_recipe`` does, before anything is started.
    """
    from flows.places import RECIPES
    from rlcore.recipes import load_recipe

    section = load_recipe(str(options.recipe), directory=RECIPES).retrain
    from flows.local import settings, up

    site = up()
    from flows.deploy import deploy_own
    from flows.retrain import retrain
    from flows.rl_pipeline import rl_pipeline

    variables = settings(site.home, site.port)
    name = deploy_own(rl_pipeline, options.recipe, retrain, environment=variables)
    folder = options.recipe.expanduser().resolve().parent
    print(f"Deployed rl-pipeline/{name}; its runs import modules from {folder}.")
    if section is not None:
        when = f"at '{section.cron}' ({section.timezone})" if section.cron else "by hand"
        print(f"Deployed retrain/{name}, which runs {when}.")
    print(f"Next: prefect deployment run rl-pipeline/{name} --watch")
    return 0
