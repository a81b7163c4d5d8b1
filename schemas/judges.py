"""Recipe section ``judges``: language models behind a URL that say what a response is worth, or
which of two is better.

A judge is named in ``judges`` and used by name: ``reward.functions: [{name: judge, options: {judge:
NAME}}]``; one that compares by ``ranked_by: judge:NAME`` and ``evaluate.win_rate.judge: NAME``.
"""

import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from schemas.errors import did_you_mean
from schemas.names import ENVIRONMENT, JUDGE, is_model
from schemas.rl import RewardFunction, RewardSection
from schemas.section import Section, rule, setting

PAIR = ("response_a", "response_b")  # placeholders of two responses that are compared
FIELDS = ("response", "prompt", "ground_truth", *PAIR)  # placeholders of a template
COMPARISONS = {"A": 1.0, "B": 0.0, "tie": 0.5}  # verdicts on a pair -> what its first is worth
# Where and how a judge is asked, not what it says: in no cache key.
NOT_OF_THE_VERDICT = {"url", "key_env", "limits", "max_calls"}
REFERENCE = "reference"  # the rows' own answers, which checkpoints are compared with

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"  # the name of one of the environment
Score = Annotated[float, Field(ge=0, le=1)]


class JudgeLimits(Section):
    """How fast and how often a judge is asked; all workers of this machine together."""

    concurrency: int = setting(8, "requests under way at a time", ge=1)
    requests_per_minute: int | None = setting(
        None, "requests sent within any minute; null = no limit", ge=1
    )
    timeout_s: float = setting(
        60.0, "seconds from sending a request to the end of its answer", gt=0
    )
    retries: int = setting(
        4,
        "further requests for a row after status 408, 409, 429 or 5xx, a timeout or a"
        " lost connection; a Retry-After of up to five minutes is kept",
        ge=0,
    )


def bad_address(url: str) -> str | None:
    """Return what is wrong with the address of a server, None where nothing is."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # a malformed port or address
        parts, host = urlsplit(""), None
    if parts.scheme in ("http", "https") and host:
        return None
    return f"{url!r} is not an http:// or https:// address"


class Judge(Section):
    """A model that is asked for a verdict on each response, at temperature 0
    (docs/understand/judges.md). Its answers are cached by model, version, template and
    what fills it."""

    url: str = Field(description="of an OpenAI-compatible API, e.g. http://127.0.0.1:8000/v1")
    model: str = Field(min_length=1, description="its name there")
    template: str = Field(
        description="what is asked, with {response}, or {response_a} and {response_b} to compare"
        " two (its verdicts are A, B and tie), and {prompt} or {ground_truth} as needed; how to"
        " answer is added. A literal brace is written twice"
    )
    key_env: str | None = setting(
        None,
        "environment variable that holds the API key; null = the server asks for none",
        pattern=VARIABLE,
    )
    choices: dict[str, Score] | None = setting(
        None, "what a verdict may say, each with its score from 0 to 1"
    )
    scale: tuple[int, int] | None = setting(
        None,
        "instead of choices: lowest and highest whole number that a verdict may say;"
        " they score 0 and 1, those between in proportion",
    )
    correct_from: Score | None = setting(
        None, "score from which a response counts as correct; null = no verdict on correctness"
    )
    constrained: bool = setting(
        False,
        "true = the server lets the model answer with one of the verdicts and nothing"
        " else (structured_outputs.choice of vLLM); the others need false",
    )
    max_tokens: int = setting(512, "tokens of an answer, verdict included", ge=8)
    max_calls: int = Field(
        ge=1, description="most answers that one run may pay for, its reruns included"
    )
    version: str = setting("1", "change it when the URL serves another model under the same name")
    limits: JudgeLimits = JudgeLimits()

    @property
    def is_pairwise(self) -> bool:
        """Whether it compares two responses."""
        return any(f"{{{name}}}" in self.template.replace("{{", "") for name in PAIR)

    @property
    def scores(self) -> dict[str, float]:
        """What a verdict may say -> its score, from 0 to 1; of a pair, that of the first."""
        if self.is_pairwise:
            return COMPARISONS
        if self.scale is None:
            return dict(self.choices or {})
        low, high = self.scale
        return {str(n): (n - low) / (high - low) for n in range(low, high + 1)}

    @property
    def identity(self) -> dict[str, Any]:
        """The JSON-ready part that decides what it says and what that is worth."""
        return self.model_dump(mode="json", exclude=NOT_OF_THE_VERDICT)

    @rule
    def _url_is_plain_http(self) -> Iterator[str]:
        if address := bad_address(self.url):
            yield f"url = {address}; write that of the API, e.g. http://127.0.0.1:8000/v1"

    @rule
    def _template_can_be_filled(self) -> Iterator[str]:
        try:
            parts = list(string.Formatter().parse(self.template))
        except ValueError as error:
            yield f"template has a single brace ({error}); write a literal brace twice"
            return
        named = [name for _, name, _, _ in parts if name is not None]
        for name in named:
            if name not in FIELDS:
                yield (
                    f"template holds {{{name}}} and there are"
                    f" {', '.join(f'{{{field}}}' for field in FIELDS)}"
                    f"{did_you_mean(name, FIELDS)}; write a literal brace twice"
                )
                return
        if any(spec or conversion for _, _, spec, conversion in parts):
            yield "template formats a placeholder; write its name alone, e.g. {response}"
        judged = PAIR if self.is_pairwise else ("response",)
        for field in judged:
            if named.count(field) != 1:
                yield (
                    f"template holds {{{field}}} {named.count(field)} times; write it once, where"
                    " the response that is judged belongs"
                )
        if self.is_pairwise and "response" in named:
            yield (
                "template holds {response} and compares two responses; write {response_a} and"
                " {response_b} alone"
            )

    @rule
    def _verdicts_differ(self) -> Iterator[str]:
        if self.is_pairwise:
            for name in ("choices", "scale", "correct_from"):
                if getattr(self, name) is not None:
                    yield (
                        f"{name} is set and the template compares two responses, on which a verdict"
                        " is A, B or tie; leave it out"
                    )
        elif (self.choices is None) == (self.scale is None):
            state = "neither is" if self.choices is None else "both are"
            yield f"{state} set of choices and scale; set exactly one of them"
        elif self.scale is not None and not 1 <= self.scale[1] - self.scale[0] <= 100:
            yield (
                f"scale = {list(self.scale)} is not a lowest and a highest number at most 100"
                " apart; write e.g. [1, 10]"
            )
        elif len(set(self.scores.values())) < 2:
            yield "choices have one score, so no verdict differs from another; add a choice"
        for choice in self.choices or ():
            if choice != " ".join(choice.split()) or not choice or set(choice) & set("*`."):
                yield (
                    f"choices holds {choice!r}; write words with single spaces, and no '*', '`' or"
                    " '.'"
                )
        lowered = [choice.casefold() for choice in self.choices or ()]
        if len(set(lowered)) < len(lowered):
            yield "choices differ in capitals only; give them different words"


class WinRate(Section):
    """How often a judge prefers a checkpoint's greedy answers to others; each pair is read in both
    orders (docs/do/evaluate.md)."""

    judge: str = Field(description="name in the section judges of one that compares two responses")
    against: Literal["base", "sft", "preference", "reference"] = setting(
        "sft",
        "whose answers those of later checkpoints are compared with; reference = the"
        " rows' ground_truth",
    )

    def compared(self, checkpoints: Collection[str]) -> list[str]:
        """Return those of ``checkpoints`` whose answers are compared with those of ``against``."""
        order = ("base", "sft", "preference", "rl")
        if self.against == REFERENCE:
            return list(checkpoints)
        later = order[order.index(self.against) + 1 :]
        there = self.against in checkpoints
        return [name for name in checkpoints if there and name in later]


def win_rate_rules(recipe: Any) -> Iterator[str]:
    """Yield a sentence where ``evaluate.win_rate`` has nothing to compare."""
    section, evaluated = recipe.evaluate.win_rate, list(recipe.evaluate.checkpoints)
    there = [name for name in evaluated if name == "base" or name in recipe.policies]
    if section is not None and not section.compared(there):
        yield (
            f"evaluate.win_rate.against = {section.against!r} leaves nothing to compare, as of"
            f" evaluate.checkpoints = {evaluated} this recipe makes {', '.join(there) or 'none'};"
            " name one that is evaluated and not the last, or reference"
        )


Judges = Annotated[
    dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")], Judge],
    Field(description="by the name that reward functions ask them under"),
]


def judge_of(function: RewardFunction) -> str | None:
    """Return the name of the judge that a term of the reward asks, None where it asks none."""
    named = function.options.get("judge")
    return named if function.name == JUDGE and isinstance(named, str) else None


def may_verify(function: RewardFunction, judges: Mapping[str, Judge]) -> bool:
    """Return whether a term of the reward may give verdicts on correctness: the reward model, a
    judge without ``correct_from`` and an environment without ``success_at`` do not."""
    if function.name == ENVIRONMENT:
        return "success_at" in function.options
    judge = judges.get(judge_of(function) or "")
    return not is_model(function.name) and (judge is None or judge.correct_from is not None)


def judges_used(
    judges: Mapping[str, Judge], functions: Sequence[RewardFunction]
) -> dict[str, Judge]:
    """Return the judges that ``functions`` name, by name, in their order."""
    named = [judge_of(function) for function in functions]
    return {name: judges[name] for name in named if name is not None}


def misused(
    judges: Mapping[str, Judge], reward: RewardSection, comparing: Mapping[str, str]
) -> Iterator[str]:
    """Yield a sentence for each rule between ``judges`` and who asks them that a recipe breaks.

    ``comparing``: names of judges by the dotted path of what has them compare responses.
    """
    there = f"there are {', '.join(judges)}" if judges else "there is none"
    named = [judge_of(function) for function in reward.functions]
    asked: list[tuple[str, str, bool]] = []
    for index, (function, name) in enumerate(zip(reward.functions, named, strict=True)):
        if function.name != JUDGE:
            continue
        path = f"reward.functions[{index}].options"
        if name is None or len(function.options) > 1:
            yield (
                f"{path} = {function.options} must name a judge and nothing else; write {{judge:"
                " NAME}, a name of the section judges"
            )
        else:
            asked.append((f"{path}.judge", name, False))
    for path, name, of_pairs in [*asked, *((path, name, True) for path, name in comparing.items())]:
        if name not in judges:
            yield (
                f"{path} = {name!r} is not in the section judges, {there}"
                f"{did_you_mean(name, judges)}; add judges.{name}"
            )
        elif judges[name].is_pairwise is not of_pairs:
            one, two = "response", "response_a and response_b"
            yield (
                f"{path} = {name!r} is asked about {two if of_pairs else one} and its template"
                f" holds {one if of_pairs else two}; change judges.{name}.template"
            )
    every_name_is_good = all(f.name != JUDGE or judge_of(f) in judges for f in reward.functions)
    every_name_is_good = every_name_is_good and judges.keys() >= set(comparing.values())
    for name, judge in judges.items():
        if name not in [*named, *comparing.values()] and every_name_is_good:
            yield (
                f"judges.{name} is asked by no reward function; add {{name: {JUDGE}, options:"
                f" {{judge: {name}}}}} to reward.functions or remove it"
            )
        if judge.key_env is not None and judge.key_env in reward.env:
            yield (
                f"reward.env = {list(reward.env)} gives every reward function the key of"
                f" judges.{name}.key_env; remove {judge.key_env} there"
            )
