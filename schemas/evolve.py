"""Recipe section ``evolve``: rounds in which a policy answers and verifiers judge."""

from collections.abc import Iterator
from typing import Any, Literal

from schemas.sampling import StopTexts, Temperature
from schemas.section import Section, rule, setting

CLOSE = "</answer>"  # of an answer of the form "tag"


class EvolveSection(Section):
    """Policy and verifiers over rounds, without an update of weights (docs/understand/evolve.md).

    Defaults are those of AlphaApollo's evolving pipeline (arXiv 2510.06261).
    """

    rounds: int = setting(10, "per problem; also the independent samples beside them", ge=1)
    verifiers: int = setting(
        5, "verdicts on each answer, an odd number: the majority decides", ge=1
    )
    max_turns: int = setting(4, "most turns of the policy in a round, with an environment", ge=1)
    memory: int = setting(3, "earlier solutions shown to the policy; 0 = none", ge=0)
    summary_tokens: int = setting(
        256, "tokens of a solution, and of a report, shown; the last ones", ge=1
    )
    temperature: Temperature = setting(0.7, "of the policy; divides the logits")
    verifier_temperature: Temperature = setting(0.4, "of the verifiers")
    max_new_tokens: int = setting(512, "tokens of one turn of either agent", ge=1)
    stop: StopTexts = setting((), "texts that end a turn of the policy")
    format_retries: int = setting(
        5, "further samples where one cannot be read; then no answer, or verdict 0", ge=0, le=5
    )
    max_prompts: int | None = setting(None, "of each source and subset", ge=1)
    answer: Literal["tag", "text"] = setting(
        "tag",
        "what the policy's last turn must be: it ends with <answer>...</answer>, or it"
        " is the answer as a whole",
    )
    policy_prompt: str | None = setting(
        None,
        "Jinja text in place of the problem's last message, of problem, memory (each"
        " with solution, report, score, round) and round; null ="
        " rlcore/evolve/templates/policy.jinja",
    )
    verifier_prompt: str | None = setting(
        None,
        "Jinja text of problem, solution and answer; null = rlcore/evolve/templates/verifier.jinja",
    )
    scored_as: str = setting(
        "#### {{ answer }}",
        "answer = tag: Jinja text of answer, the response that reward functions read",
    )

    @property
    def identity(self) -> dict[str, Any]:
        """What a round depends on: not how many there are."""
        unused = set() if self.stop else {"stop"}  # which is younger than keys in use
        return self.model_dump(mode="json", exclude={"rounds", "scored_as"} | unused)

    @rule
    def _stop_leaves_the_tag(self) -> Iterator[str]:
        cut = [text for text in self.stop if text in CLOSE or CLOSE in text]
        if self.answer == "tag" and cut:
            yield (
                f"stop = {cut[0]!r} is cut off an answer, and answer = 'tag' reads up to {CLOSE};"
                " leave it out of stop"
            )

    @rule
    def _verifiers_are_odd(self) -> Iterator[str]:
        if self.verifiers % 2 == 0:
            yield (
                f"verifiers = {self.verifiers} is even, so a vote could be a tie; use"
                f" {self.verifiers - 1} or {self.verifiers + 1}"
            )
