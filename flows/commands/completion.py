"""``rl-pipeline completion``: the line that makes a shell complete commands, recipes and keys."""

import argparse
from typing import Any


def add_completion(commands: Any) -> None:
    parser = commands.add_parser(
        "completion", help='completion for a shell: eval "$(rl-pipeline completion bash)"'
    )
    parser.add_argument("shell", choices=["bash", "zsh"])
    parser.set_defaults(command=_completion)


def _completion(options: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["rl-pipeline"], shell=options.shell))
    return 0
