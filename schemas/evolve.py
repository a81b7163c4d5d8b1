"""Recipe section ``evolve``: rounds in which a policy answers and verifiers judge."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from schemas.sampling import StopTexts, Temperature
from schemas.section import Section, rule


class EvolveSection(Section):
    """Policy and verifiers over rounds, without an update of weights (docs/understand/evolve.md).

    Defaults are those of AlphaApollo's evolving pipeline (arXiv 2510.06261).
    """

    rounds: int = Field(
        default=10, ge=1, description="per problem; also the independent samples beside them"
    )
    verifiers: int = Field(
        default=5, ge=1, description="verdicts on each answer, an odd number: the majority decides"
    )
    max_turns: int = Field(
        default=4, ge=1, description="most turns of the policy in a round, with an environment"
    )
    memory: int = Field(
        default=3, ge=0, description="earlier solutions shown to the policy; 0 = none"
    )
    summary_tokens: int = Field(
        default=256, ge=1, description="tokens of a solution, and of a report, shown; the last ones"
    )
    temperature: Temperature = Field(default=0.7, description="of the policy; divides the logits")
    verifier_temperature: Temperature = Field(default=0.4, description="of the verifiers")
    max_new_tokens: int = Field(default=512, ge=1, description="tokens of one turn of either agent")
    stop: StopTexts = Field(default=(), description="texts that end a turn of the policy")
    format_retries: int = Field(
        default=5,
        ge=0,
        le=5,
        description="further samples where one cannot be read; then no answer, or verdict 0",
    )
    max_prompts: int | None = Field(default=None, ge=1, description="of each source and subset")
    answer: Literal["tag", "text"] = Field(
        default="tag",
        description="what the policy's last turn must be: it ends with <answer>...</answer>, or it"
        " is the answer as a whole",
    )
    policy_prompt: str | None = Field(
        default=None,
        description="Jinja text in place of the problem's last message, of problem, memory (each"
        " with solution, report, score, round) and round; null ="
        " rlcore/evolve/templates/policy.jinja",
    )
    verifier_prompt: str | None = Field(
        default=None,
        description="Jinja text of problem, solution and answer; null ="
        " rlcore/evolve/templates/verifier.jinja",
    )
    scored_as: str = Field(
        default="#### {{ answer }}",
        description="answer = tag: Jinja text of answer, the response that reward functions read",
    )

    @property
    def identity(self) -> dict[str, Any]:
        """What a round depends on: not how many there are."""
        unused = set() if self.stop else {"stop"}  # which is younger than keys in use
        return self.model_dump(mode="json", exclude={"rounds", "scored_as"} | unused)

    @rule
    def _verifiers_are_odd(self) -> Iterator[str]:
        if self.verifiers % 2 == 0:
            yield (
                f"verifiers = {self.verifiers} is even, so a vote could be a tie; use"
                f" {self.verifiers - 1} or {self.verifiers + 1}"
            )
