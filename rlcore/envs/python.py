"""Python as a tool: programs of the policy run in the sandbox of the reward ``code``."""

from rlcore.sandbox.probe import find_sandbox
from rlcore.sandbox.types import MIB, Limits, Ran, Status
from schemas.errors import UserError

_MARGIN_S = 1.0  # what a step takes besides its program


class Python:
    """Runs a program per call, without network, files of the machine, or other processes; nothing
    is kept from one call to the next."""

    def __init__(
        self,
        memory_mib: int = 256,
        output_characters: int = 4000,
        sandbox: str = "auto",
        *,
        timeout_s: float = 10.0,
    ) -> None:
        """``memory_mib``: address space of a program. ``output_characters``: of what it prints, the
        last are kept. ``sandbox``: its level, or "auto". ``timeout_s``: seconds of one step.

        Raises UserError for options that cannot work, and where the sandbox does not hold.
        """
        if memory_mib < 64:
            raise UserError(
                f"environment.options.memory_mib = {memory_mib} leaves a Python program no room;"
                " use at least 64"
            )
        if timeout_s <= _MARGIN_S:
            raise UserError(
                f"environment.timeout_s = {timeout_s:g} leaves a program no time; use more than"
                f" {_MARGIN_S:g}"
            )
        self._characters = output_characters
        self._sandbox = find_sandbox(sandbox, "environment.options.sandbox")
        self._limits = Limits(
            seconds=timeout_s - _MARGIN_S,
            memory_bytes=memory_mib * MIB,
            output_bytes=8 * output_characters,
        )

    def python(self, program: str) -> str:
        """Run a Python program and return what it prints.

        Args:
            program: The whole program. Print what you want to know.
        """
        ran = self._sandbox.run(program, limits=self._limits)
        said = ran.stdout.decode(errors="replace").strip()[-self._characters :]
        if ran.succeeded:
            return said or "(the program printed nothing)"
        return "\n".join(part for part in (said, f"error: {_ending(ran, self._limits)}") if part)


def _ending(ran: Ran, limits: Limits) -> str:
    match ran.status:
        case Status.TIMEOUT:
            return f"no end within {limits.seconds:.3g} s"
        case Status.EXITED:
            last = ran.stderr.decode(errors="replace").strip().rsplit("\n", 1)[-1]
            return last[:200] or f"exit code {ran.exit_code}"
    return f"the program was ended: {ran.status.value}"
