"""What hostile programs try, one function each; run inside a sandbox, in one go or one at a time.

A function returns whether it got what it wanted; an exception means that it was refused. What is
outside (files, processes, servers) is named in the facts, JSON on stdin; the names to run follow in
"run". The names of those that succeeded are printed.
"""

import json
import sys

# They fill the table.
from tests.rlcore.sandbox import attacks_on_files, attacks_on_the_machine
from tests.rlcore.sandbox.attack_table import ATTACKS

MODULES = (attacks_on_files, attacks_on_the_machine)
PROGRAM = "from tests.rlcore.sandbox.attacks import main\nmain()"


def main():
    facts = json.load(sys.stdin)
    succeeded = []
    for name in facts.get("run") or ATTACKS:
        try:
            if ATTACKS[name](facts):
                succeeded.append(name)
        except (OSError, RuntimeError, MemoryError, ValueError, AttributeError, ImportError):
            continue
    print(json.dumps(succeeded))
