"""Recipe section ``reward_model``: preferences and the model trained on them."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from schemas.data import GSM8K_INSTRUCTION
from schemas.errors import did_you_mean
from schemas.judges import VARIABLE, JudgeLimits, bad_address, may_verify
from schemas.names import JUDGE, REWARD_MODEL, ranking_term, term_name
from schemas.optimizer import Optimizer, Schedule, rest_of
from schemas.sampling import StopTexts, Temperature
from schemas.section import Section, rule, setting

VERIFIER = "verifier"


class SampledPreferences(Section):
    """Responses of the warm-started policy to the dataset's prompts, ranked by verdicts of the
    reward functions (correct, wrong, malformed), by the scores of one of them, or in pairs by a
    judge."""

    kind: Literal["samples"] = setting("samples", "samples of the policy")
    ranked_by: str = setting(
        VERIFIER,
        "verifier = verdicts on correctness; a name in reward.functions, whose scores"
        " rank (weight 0 if it must not be trained on), as package.module:function or"
        " reward_model:NAME; judge:NAME = a judge that compares two, asked about each pair in both"
        " orders",
    )
    prompts: int = setting(1024, "training prompts sampled, at most", ge=1)
    validation_prompts: int = setting(
        256, "held-out prompts sampled, at most; for the stage's figures", ge=1
    )
    min_responses: int = setting(
        4, "fewest responses per prompt; drawn between this and the most", ge=2
    )
    max_responses: int = setting(9, "most responses per prompt", ge=2)
    temperature: Temperature = setting(1.0, "divides the logits")
    max_new_tokens: int = setting(512, "tokens per response", ge=1)
    stop: StopTexts = setting((), "texts that end a response; left out = those of rl.rollout.stop")

    @model_validator(mode="before")
    @classmethod
    def _other_end_follows(cls, values: Any) -> Any:
        """Move the default of one end of the range where the other is set beyond it."""
        if not isinstance(values, Mapping):
            return values
        fewest, most = (values.get(f"{end}_responses") for end in ("min", "max"))
        if fewest is None and isinstance(most, int):
            return {**values, "min_responses": min(most, cls.model_fields["min_responses"].default)}
        if most is None and isinstance(fewest, int):
            return {
                **values,
                "max_responses": max(fewest, cls.model_fields["max_responses"].default),
            }
        return values

    @property
    def responses(self) -> int:
        """Responses sampled, at most."""
        return (self.prompts + self.validation_prompts) * self.max_responses

    @property
    def judge(self) -> str | None:
        """The judge NAME of ``ranked_by``: judge:NAME; None where it names none."""
        kind, _, name = self.ranked_by.partition(":")
        return name if kind == JUDGE else None

    @rule
    def _range_is_one(self) -> Iterator[str]:
        if self.max_responses < self.min_responses:
            yield (
                f"max_responses = {self.max_responses} is below min_responses ="
                f" {self.min_responses}; raise it"
            )


class Gsm8kSolutions(Section):
    """GSM8K's example_model_solutions.jsonl: four model solutions per question of its test split,
    each with a flag whether it is correct."""

    kind: Literal["gsm8k_solutions"] = setting("gsm8k_solutions", "GSM8K's model solutions")
    path: str | None = setting(None, "the file; default: below $GSM8K_DIR")
    instruction: str = setting(GSM8K_INSTRUCTION, "appended to each question")
    answer_marker: str = setting(
        "#### ", "replaces the solutions' 'A: ', to match the policy's demonstrations"
    )
    validation_fraction: float = setting(0.2, "of questions, by hash", gt=0, lt=1)
    limit: int | None = setting(None, "first questions; null = all", ge=1)


class FilePreferences(Section):
    """A Parquet or JSONL file: ``chosen, rejected`` as TRL, UltraFeedback or hh have them, with the
    prompt apart or in both conversations, or ``prompt, responses, ranks`` with rank 1 the best."""

    kind: Literal["file"] = setting("file", "your own file")
    path: str = Field(description="local path or fsspec URL of a .parquet, .jsonl or .json file")
    data_source: str | None = setting(None, "verl's task name; null = the file's")
    validation_fraction: float = setting(0.1, "of prompts, by hash", gt=0, lt=1)
    limit: int | None = setting(None, "first rows; null = all", ge=1)


Preferences = Annotated[
    SampledPreferences | Gsm8kSolutions | FilePreferences, Field(discriminator="kind")
]


class BroughtRewardModel(Section):
    """A trained reward model: a classifier with one label (transformers'
    AutoModelForSequenceClassification), which reads each conversation by its own tokenizer and chat
    template. It is loaded from ``path``, or asked at ``url``."""

    path: str | None = setting(None, "local Hugging Face directory, or a hub name (owner/name)")
    revision: str | None = setting(None, "of the hub; a commit pins it; null = its main branch")
    dtype: Literal["float32", "bfloat16"] = setting("float32", "of its weights and activations")
    url: str | None = setting(
        None,
        "instead of path: of a server of vLLM that has the model (vllm serve PATH),"
        " e.g. http://127.0.0.1:8000; asked at /classify for raw scores",
    )
    version: str | None = setting(
        None,
        "url only: a name for what it serves, which cache keys hold; change it when url"
        " serves other weights",
        min_length=1,
    )
    key_env: str | None = setting(
        None,
        "url only: environment variable that holds the API key; null = none is asked for",
        pattern=VARIABLE,
    )
    limits: JudgeLimits = setting(JudgeLimits(), "url only: how it is asked")
    observations: bool = setting(
        False,
        "of an episode it reads what environments said too; false = what the policy"
        " said, as tools could write what is rewarded",
    )

    @property
    def identity(self) -> dict[str, Any]:
        """What its scores depend on, besides its files."""
        names = {"observations", "dtype" if self.url is None else "version"}
        return self.model_dump(mode="json", include=names)

    @rule
    def _is_at_one_place(self) -> Iterator[str]:
        if (self.path is None) == (self.url is None):
            state = "neither is" if self.path is None else "both are"
            yield f"{state} set of path and url; set exactly one of them"
            return
        here, foreign = "url", ("revision", "dtype")
        if self.url is None:
            here, foreign = "path", ("version", "key_env", "limits")
        for key in foreign:
            if getattr(self, key) != type(self).model_fields[key].default:
                yield f"{key} is set and says nothing of a model by {here}; leave it out"
        if self.url is None:
            return
        if self.version is None:
            yield (
                "version is not set and url is, whose weights no key can hold; give what it serves"
                " a name, such as its commit, and change it with the weights"
            )
        if address := bad_address(self.url):
            yield f"url = {address}; write that of the server, e.g. http://127.0.0.1:8000"


BroughtRewardModels = dict[
    Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")], BroughtRewardModel
]


_OPTIMIZER = Optimizer(
    lr=1e-5, betas=(0.9, 0.95), schedule=Schedule(kind="cosine", warmup_ratio=0.03)
)


class RewardModelSection(Section):
    """Stage reward_model: a scalar head on the warm-started policy, or on ``base``, trained on
    ranked responses."""

    base: str | None = setting(
        None,
        "what it is made of: a local Hugging Face directory or a hub name, with the"
        " tokenizer of the policy, e.g. a smaller model of its family; null = the warm-started"
        " policy",
    )
    base_revision: str | None = setting(
        None, "of the hub; a commit pins it; null = its main branch"
    )
    preferences: Preferences = setting(SampledPreferences(), "where ranked responses come from")
    epochs: int = setting(
        1, "passes over the preferences; a second overfits (arXiv 2203.02155 App. C.2)", ge=1
    )
    batch_prompts: int = setting(64, "prompts per optimizer step", ge=1)
    max_tokens: int = setting(1024, "tokens of prompt and response; longer ones are left out", ge=8)
    zero_demonstrations: int = setting(
        1024, "demonstrations whose mean score the bias is shifted to 0", ge=1
    )
    checkpoint_every: int = setting(200, "steps between checkpoints", ge=1)
    optimizer: Annotated[Optimizer, rest_of(_OPTIMIZER)] = _OPTIMIZER

    @rule
    def _revision_is_of_a_base(self) -> Iterator[str]:
        if self.base is None and self.base_revision is not None:
            yield (
                f"base_revision = {self.base_revision!r} is of no model; set base, or leave it out"
            )


def ranking_rules(path: str, section: SampledPreferences, recipe: Any) -> Iterator[str]:
    """Yield a sentence where nothing can rank the samples of ``section``, which is at ``path`` of
    ``recipe``."""
    by, functions = section.ranked_by, recipe.reward.functions
    if by == VERIFIER:
        if not any(may_verify(function, recipe.judges) for function in functions):
            yield (
                f"{path} of kind 'samples' are ranked by correctness and reward.functions holds no"
                " function that checks it; add one, of weight 0 if it must not be trained on, or"
                f" set {path}.ranked_by"
            )
        return
    terms = [term_name(function.name, function.options) for function in functions]
    if ranking_term(by) not in terms and f"{path}.ranked_by" not in recipe.comparing:
        yield (
            f"{path}.ranked_by = {by!r} is not in reward.functions"
            f"{did_you_mean(ranking_term(by), [*terms, VERIFIER])}; add it there, of weight 0 if it"
            f" must not be trained on, or name {VERIFIER} or judge:NAME"
        )
    elif by == REWARD_MODEL:
        yield (
            f"{path}.ranked_by = {by!r} is the model that is to be trained on these ranks; name one"
            " that you bring as reward_model:NAME"
        )
