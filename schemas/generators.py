"""Sources of the recipe section ``data`` whose rows are not read but made."""

from typing import Literal

from pydantic import Field, field_validator

from schemas.section import Section

ARITHMETIC, PROGRAMS, INSTRUCTIONS = "arithmetic", "programs", "instructions"
ENVIRONMENT = "environment"
GENERATED = (ARITHMETIC, PROGRAMS, INSTRUCTIONS, ENVIRONMENT)  # their kinds


class ArithmeticSource(Section):
    """Generated two-digit word problems with imperfect demonstrations; disjoint by operand
    tuple."""

    kind: Literal["arithmetic"] = Field(default=ARITHMETIC, description="generated problems")
    train: int = Field(default=4096, ge=1, description="RL training prompts")
    validation: int = Field(default=256, ge=1, description="validation prompts")
    test: int = Field(default=512, ge=1, description="test prompts: held-out operand tuples")
    test_steps: int = Field(default=256, ge=1, description="test prompts: held-out single steps")
    demonstrations: int = Field(default=46080, ge=1, description="SFT examples")
    steps: tuple[int, int] = Field(
        default=(1, 2), description="fewest and most steps of a problem, 1 to 3"
    )
    stop_early: float = Field(
        default=0.60,
        ge=0,
        le=1,
        description="share of examples ending after step 1 if that is a product; else half of it",
    )
    wrong_operation: float = Field(default=0.35, ge=0, le=1, description="share with a wrong step")
    off_result: float = Field(default=0.08, ge=0, le=1, description="share with a wrong result")
    malformed: float = Field(default=0.10, ge=0, le=1, description="share with a bad last line")

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

    kind: Literal["programs"] = Field(default=PROGRAMS, description="generated programming tasks")
    train: int = Field(default=4096, ge=1, description="RL training prompts")
    validation: int = Field(default=256, ge=1, description="validation prompts: held-out programs")
    test: int = Field(default=512, ge=1, description="test prompts: held-out programs")
    demonstrations: int = Field(default=23040, ge=1, description="SFT examples")
    tests: int = Field(default=2, ge=1, le=100, description="inputs that a program is tried with")
    forgotten_step: float = Field(
        default=0.60,
        ge=0,
        le=1,
        description="share of examples without step 2 if step 1 multiplies or divides; else half"
        " of it",
    )
    no_parentheses: float = Field(
        default=0.60, ge=0, le=1, description="share that lacks parentheses where a sum needs them"
    )
    wrong_operation: float = Field(default=0.20, ge=0, le=1, description="share with a wrong step")
    wrong_number: float = Field(default=0.05, ge=0, le=1, description="share with a wrong number")
    malformed: float = Field(
        default=0.10, ge=0, le=1, description="share that is no Python block or prints nothing"
    )


class InstructionsSource(Section):
    """Generated instructions that a rule can check, with held-out words for test prompts."""

    kind: Literal["instructions"] = Field(
        default=INSTRUCTIONS, description="generated, no SFT rows"
    )
    train: int = Field(default=2048, ge=1, description="RL training prompts")
    validation: int = Field(default=64, ge=1, description="validation prompts")
    test: int = Field(default=256, ge=1, description="test prompts: held-out words")


class EnvironmentSource(Section):
    """Prompts that the recipe's environment begins its episodes with, drawn by seed."""

    kind: Literal["environment"] = Field(default=ENVIRONMENT, description="of the environment")
    train_size: int = Field(default=1024, ge=1, description="RL training prompts")
    validation_size: int = Field(default=128, ge=1, description="validation prompts")
    test_size: int = Field(default=256, ge=1, description="test prompts")
    demonstrations: int = Field(
        default=0, ge=0, description="SFT examples, of the environment's demonstration(seed)"
    )
    data_source: str | None = Field(default=None, description="null = the environment's name")


GeneratedSource = ArithmeticSource | ProgramsSource | InstructionsSource | EnvironmentSource
