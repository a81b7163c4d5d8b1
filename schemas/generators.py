"""Sources of the recipe section ``data`` whose rows are not read but made."""

from typing import Literal

from pydantic import field_validator

from schemas.section import Section, setting

ARITHMETIC, PROGRAMS, INSTRUCTIONS = "arithmetic", "programs", "instructions"
ENVIRONMENT = "environment"
GENERATED = (ARITHMETIC, PROGRAMS, INSTRUCTIONS, ENVIRONMENT)  # their kinds


class ArithmeticSource(Section):
    """Generated two-digit word problems with imperfect demonstrations; disjoint by operand
    tuple."""

    kind: Literal["arithmetic"] = setting(ARITHMETIC, "generated problems")
    train: int = setting(4096, "RL training prompts", ge=1)
    validation: int = setting(256, "validation prompts", ge=1)
    test: int = setting(512, "test prompts: held-out operand tuples", ge=1)
    test_steps: int = setting(256, "test prompts: held-out single steps", ge=1)
    demonstrations: int = setting(46080, "SFT examples", ge=1)
    steps: tuple[int, int] = setting((1, 2), "fewest and most steps of a problem, 1 to 3")
    stop_early: float = setting(
        0.60,
        "share of examples ending after step 1 if that is a product; else half of it",
        ge=0,
        le=1,
    )
    wrong_operation: float = setting(0.35, "share with a wrong step", ge=0, le=1)
    off_result: float = setting(0.08, "share with a wrong result", ge=0, le=1)
    malformed: float = setting(0.10, "share with a bad last line", ge=0, le=1)

    @field_validator("steps")
    @classmethod
    def _steps_exist(cls, value: tuple[int, int]) -> tuple[int, int]:
        if not 1 <= value[0] <= value[1] <= 3:
            raise ValueError(
                f"steps = {list(value)} is not a range within 1 to 3; give [fewest, most], "
                " e.g. [2, 3]"
            )
        return value


class ProgramsSource(Section):
    """Generated descriptions of one-line Python programs with imperfect demonstrations; disjoint by
    what the programs compute."""

    kind: Literal["programs"] = setting(PROGRAMS, "generated programming tasks")
    train: int = setting(4096, "RL training prompts", ge=1)
    validation: int = setting(256, "validation prompts: held-out programs", ge=1)
    test: int = setting(512, "test prompts: held-out programs", ge=1)
    demonstrations: int = setting(23040, "SFT examples", ge=1)
    tests: int = setting(2, "inputs that a program is tried with", ge=1, le=100)
    forgotten_step: float = setting(
        0.60,
        "share of examples without step 2 if step 1 multiplies or divides; else half of it",
        ge=0,
        le=1,
    )
    no_parentheses: float = setting(
        0.60, "share that lacks parentheses where a sum needs them", ge=0, le=1
    )
    wrong_operation: float = setting(0.20, "share with a wrong step", ge=0, le=1)
    wrong_number: float = setting(0.05, "share with a wrong number", ge=0, le=1)
    malformed: float = setting(0.10, "share that is no Python block or prints nothing", ge=0, le=1)


class InstructionsSource(Section):
    """Generated instructions that a rule can check, with held-out words for test prompts."""

    kind: Literal["instructions"] = setting(INSTRUCTIONS, "generated, no SFT rows")
    train: int = setting(2048, "RL training prompts", ge=1)
    validation: int = setting(64, "validation prompts", ge=1)
    test: int = setting(256, "test prompts: held-out words", ge=1)


class EnvironmentSource(Section):
    """Prompts that the recipe's environment begins its episodes with, drawn by seed."""

    kind: Literal["environment"] = setting(ENVIRONMENT, "of the environment")
    train_size: int = setting(1024, "RL training prompts", ge=1)
    validation_size: int = setting(128, "validation prompts", ge=1)
    test_size: int = setting(256, "test prompts", ge=1)
    demonstrations: int = setting(0, "SFT examples, of the environment's demonstration(seed)", ge=0)
    data_source: str | None = setting(None, "null = the environment's name")


GeneratedSource = ArithmeticSource | ProgramsSource | InstructionsSource | EnvironmentSource
