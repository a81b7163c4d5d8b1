"""What the cluster tests run elsewhere."""

import os
import time

from schemas.errors import UserError

ENVIRONMENT_AT_IMPORT = os.environ.get("PROBE", "")


class Probe:
    """Does what it is told."""

    def __init__(self, value: int) -> None:
        if value < 0:
            raise UserError(f"probe value = {value} must be >= 0; raise it")
        self.value = value

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def environment(self) -> str:
        return ENVIRONMENT_AT_IMPORT

    def refuse(self) -> None:
        raise UserError("this is refused; ask for something else")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def die(self) -> None:
        os._exit(1)

    def close(self) -> None:
        """Nothing to free."""
