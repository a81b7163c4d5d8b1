"""Reward models that users bring: scores equal to transformers' own, and what is refused."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    Gemma2Config,
    Gemma2ForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from rlcore.cluster.in_process import InProcessWorker
from rlcore.models.classifier import (
    Classifier,
    base_directory,
    check_base,
    check_classifier,
    check_reads_ids,
    is_own,
    parameters_of,
)
from rlcore.rewards.pool import RewardPool, brought_scores, conversation
from rlcore.rewards.types import RewardRow
from schemas.errors import UserError
from schemas.outcomes import Outcome
from schemas.reward_model import BroughtRewardModel, RewardModelSection
from schemas.rl import RewardSection
from tests.tiers import fast

TEMPLATE = (
    "{% for m in messages %}[{{ m.role | upper }}] {{ m.content }} </s>{% endfor %}"
    "{% if add_generation_prompt %}[ASSISTANT]{% endif %}"
)
WORDS = (
    "the sum of two and three is five so answer a b c d e 0 1 2 3 4 5 6 7 8 9 [USER] [ASSISTANT]"
)
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 96,
}
CLASSES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForSequenceClassification, {"num_key_value_heads": 1}),
    "qwen2": (Qwen2Config, Qwen2ForSequenceClassification, {"num_key_value_heads": 1}),
    "gemma2": (
        Gemma2Config,
        Gemma2ForSequenceClassification,
        {"num_key_value_heads": 1, "head_dim": 16, "attn_logit_softcapping": 0.5},
    ),
    "bert": (BertConfig, BertForSequenceClassification, {}),
}


def tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """A vocabulary of its own; messages end with its EOS, with which it pads, as many do."""
    raw = Tokenizer(models.WordLevel(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    special = ["<unk>", "</s>"]
    raw.train_from_iterator([WORDS], trainers.WordLevelTrainer(special_tokens=special))
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )
    made.chat_template = template
    return made


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return ``save(class, labels=..., template=..., pad=...)``, which gives a directory."""

    def save(
        kind: str,
        *,
        labels: int = 1,
        template: str | None = TEMPLATE,
        pad: bool = True,
        **more: Any,
    ) -> Path:
        config_class, model_class, extra = CLASSES[kind]
        reader = tokenizer(template)
        config = config_class(
            **{**SIZES, **extra, **more}, vocab_size=len(reader), num_labels=labels
        )
        config.pad_token_id = reader.pad_token_id if pad else None
        torch.manual_seed(len(kind))
        model = model_class(config).eval()
        for parameter in model.parameters():  # so that answers differ by more than rounding
            torch.nn.init.normal_(parameter, std=0.3)
        target = tmp_path_factory.mktemp(kind)
        model.save_pretrained(target)
        reader.save_pretrained(target)
        return target

    return save


def responses(count: int) -> list[list[dict[str, str]]]:
    words = WORDS.split()
    return [
        [
            {"role": "user", "content": " ".join(words[i % 5 : i % 5 + 3])},
            {"role": "assistant", "content": " ".join(words[(3 * i) % 17 :][: 1 + (7 * i) % 19])},
        ]
        for i in range(count)
    ]


def expected(directory: Path, conversations: list[list[dict[str, str]]]) -> list[float]:
    """Transformers' own forward on the rendered text, each alone."""
    reader = AutoTokenizer.from_pretrained(directory)
    # eager: transformers' sdpa leaves out the cap of a Gemma 2
    model = AutoModelForSequenceClassification.from_pretrained(
        directory, attn_implementation="eager"
    ).eval()
    scores = []
    for one in conversations:
        text = reader.apply_chat_template(one, tokenize=False)
        encoded = reader(text, return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            scores.append(float(model(**encoded).logits[0, 0]))
    return scores


@pytest.mark.parametrize("pad", fast([True, False], False))
@pytest.mark.parametrize("kind", CLASSES)
def test_scores_are_those_of_transformers_in_batches_of_any_size(
    saved: Callable[..., Path], kind: str, pad: bool
) -> None:
    directory, asked = saved(kind, pad=pad), responses(200)
    alone = expected(directory, asked)
    assert max(alone) - min(alone) > 0.01, "a thousand times what is allowed"
    model = Classifier("mine", str(directory), "float32", "cpu", 1)
    for size in (1, 7, 200):
        found = [s for i in range(0, 200, size) for s in model.score(asked[i : i + size])]
        assert found == pytest.approx(alone, abs=1e-5)


def test_it_loads_in_bfloat16(saved: Callable[..., Path]) -> None:
    directory, asked = saved("llama"), responses(8)
    found = Classifier("mine", str(directory), "bfloat16", "cpu", 1).score(asked)
    assert found == pytest.approx(expected(directory, asked), abs=0.3)
    assert found != pytest.approx(expected(directory, asked), abs=1e-5)


def test_what_cannot_be_scored_says_why_and_the_others_have_scores(
    saved: Callable[..., Path],
) -> None:
    refuses = (
        TEMPLATE + "{% if messages[0].role != 'user' %}{{ raise_exception('no user') }}{% endif %}"
    )
    model = Classifier("mine", str(saved("llama", template=refuses)), "float32", "cpu", 1)
    (fine,) = responses(1)
    long = [fine[0], {"role": "assistant", "content": "a " * 200}]
    found = model.score([fine, long, fine[1:], fine])
    assert found[0] == found[3]
    assert found[1] == "207 tokens, and it reads 96"
    assert "its template cannot write the conversation: no user" in str(found[2])


def check(path: Path | str, longest: int = 96) -> None:
    check_classifier("mine", BroughtRewardModel(path=str(path)), longest=longest)


def test_each_refusal_is_one_sentence(saved: Callable[..., Path], tmp_path: Path) -> None:
    generates = tmp_path / "generates"
    LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=50)).save_pretrained(generates)
    refused = {
        saved("llama", labels=2): "has 2 labels, and a reward is one number",
        generates: "is a LlamaForCausalLM, which has no head that scores",
        saved("qwen2", template=None): "has no chat template",
        tmp_path / "nowhere": "is not a directory; give one, or a hub name",
    }
    for path, said in refused.items():
        with pytest.raises(UserError, match=said) as raised:
            check(path)
        assert "reward_models.mine.path = '" in str(raised.value)
        assert "\n" not in str(raised.value)
    fits = saved("llama")
    check(fits)
    with pytest.raises(UserError, match=r"reads 96 tokens .* prompt and answer may have 97"):
        check(fits, longest=97)
    check("owner/name")  # of the hub: looked at when it is there


@pytest.mark.parametrize("kind", CLASSES)
def test_files_without_the_head_are_refused(saved: Callable[..., Path], kind: str) -> None:
    """Transformers would draw one at random, which scores as well as any."""
    directory = saved(kind)
    check(directory)
    file = directory / "model.safetensors"
    head = {"bert": "classifier.weight"}.get(kind, "score.weight")
    state = load_file(file)
    save_file({name: value for name, value in state.items() if name != head}, file)
    with pytest.raises(UserError, match=f"lacks '{head}', which would be drawn at random"):
        check(directory)
    save_file({**state, head: state[head][:, :5].contiguous()}, file)
    with pytest.raises(UserError, match=r"in other shapes than config\.json has"):
        check(directory)
    file.unlink()
    with pytest.raises(UserError):
        check(directory)


def test_one_of_an_earlier_run_reads_ids_and_needs_no_template(
    saved: Callable[..., Path], tmp_path: Path
) -> None:
    directory, policy = saved("llama", template=None), saved("llama")
    file = directory / "model.safetensors"
    state = load_file(file)
    with pytest.raises(UserError, match="has no chat template"):
        check(directory)
    assert not is_own(directory)
    save_file({**state, "score.bias": torch.ones(1)}, file)  # which transformers' heads lack
    assert is_own(directory)
    check(directory)
    check_reads_ids("reward_models.mine.path = 'a'", directory, policy)
    other = tokenizer()
    other.add_tokens(["more"])
    other.save_pretrained(policy)
    with pytest.raises(UserError, match=r"reward_models.mine.path = .* has another tokenizer"):
        check_reads_ids("reward_models.mine.path = 'a'", directory, policy)


def test_a_base_of_the_runs_own_model_has_the_policys_tokenizer_and_context(
    saved: Callable[..., Path], tmp_path: Path
) -> None:
    def check(base: str | None, policy: Path | None, longest: int = 96) -> None:
        check_base(RewardModelSection(base=base), policy, longest=longest)

    base, policy = saved("llama"), saved("qwen2")
    check(str(base), policy)
    check("owner/name", policy)  # of the hub: looked at when it is there
    check(None, policy)
    assert base_directory(RewardModelSection(), policy) == policy
    assert base_directory(RewardModelSection(base=str(base)), policy) == base
    other = tokenizer()
    other.add_tokens(["more"])
    other.save_pretrained(policy)
    refused = {
        (str(base), policy, 96): "has another tokenizer than the policy",
        (str(base), None, 97): "reads 96 tokens .* prompt and answer may have 97",
        (str(tmp_path / "nowhere"), None, 9): "is not a directory; give a local",
    }
    for (path, beside, longest), said in refused.items():
        with pytest.raises(UserError, match=rf"reward_model.base = '.*' .*{said}|{said}") as raised:
            check(path, beside, longest)
        assert "reward_model.base = '" in str(raised.value)
        assert "\n" not in str(raised.value)


def test_labels_of_a_file_that_says_nothing_are_two(saved: Callable[..., Path]) -> None:
    """As transformers reads it."""
    directory = saved("llama")
    config = json.loads((directory / "config.json").read_text())
    for key in ("num_labels", "id2label", "label2id"):
        config.pop(key, None)
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="has 2 labels"):
        check(directory)


def test_its_parameters_are_counted(saved: Callable[..., Path]) -> None:
    directory = saved("llama")
    model = AutoModelForSequenceClassification.from_pretrained(directory)
    counted = parameters_of(str(directory))
    assert counted == sum(parameter.numel() for parameter in model.parameters())
    assert parameters_of("owner/name") == 0


def row(name: str, response: str, **more: Any) -> RewardRow:
    return RewardRow(
        name,
        "arithmetic",
        response,
        "5",
        {},
        "stop",
        3,
        messages=[{"role": "user", "content": "the sum"}],
        **more,
    )


EPISODE = (
    {"role": "assistant", "content": "a"},
    {"role": "tool", "content": "ignore this"},
    {"role": "assistant", "content": "five"},
)


def test_of_an_episode_it_reads_what_the_policy_said() -> None:
    """What a tool says could be written to please it."""
    played = row("t", "five", turns=EPISODE)
    said = conversation(played, observations=False)
    assert said == [
        {"role": "user", "content": "the sum"},
        {"role": "assistant", "content": "a\nfive"},
    ]
    assert conversation(played, observations=True)[1:] == [*EPISODE]
    assert conversation(row("t", "five"), observations=True)[-1]["content"] == "five"


class Says:
    """A reward model that says the same of every response."""

    def __init__(self, value: float | str) -> None:
        self._value = value

    def __call__(self, rows: list[RewardRow]) -> list[float | str]:
        return [self._value for _ in rows]


def summed(ensemble: str, **models: float | str) -> Any:
    """The reward of one response that the environment gives 1, by models of weight 2."""
    named = [{"name": f"reward_model:{name}", "weight": 2.0} for name in models]
    functions = [{"name": "environment", "options": {"success_at": 1.0}}, *named]
    section = RewardSection.model_validate({"functions": functions, "ensemble": ensemble})
    said: Any = {f"reward_model:{name}": Says(value) for name, value in models.items()}
    pool = RewardPool([], section, timeout_s=5, models=said)
    return pool.score([row("t", "five", turn_rewards=[1.0])])[0]


def test_an_ensemble_adds_the_sum_or_the_least() -> None:
    assert summed("sum", a=0.5, b=-0.25).score == 1.5
    least = summed("min", a=0.5, b=-0.25)
    assert least.score == 0.5
    assert least.parts == {"environment": 1.0, "reward_model:a": 0.5, "reward_model:b": -0.25}
    assert summed("min", a=0.5, b="no answer").score is None
    with pytest.raises(ValueError, match="ensemble = 'min' is of several reward models"):
        summed("min", a=0.5)


@pytest.mark.parametrize("weight", [2.0, 0.0])
def test_the_pool_adds_what_models_say_by_their_weights(
    saved: Callable[..., Path], weight: float
) -> None:
    directory = saved("llama")
    worker = InProcessWorker.of("m", Classifier("mine", str(directory), "float32", "cpu", 1))
    brought = partial(brought_scores, worker, BroughtRewardModel(path=str(directory)), 60.0)
    section = RewardSection.model_validate(
        {
            "functions": [
                {"name": "environment", "options": {"success_at": 1.0}},
                {"name": "reward_model:mine", "weight": weight},
            ]
        }
    )
    pool = RewardPool([], section, timeout_s=5, models={"reward_model:mine": brought})
    rows = [row("t0", "five", turn_rewards=[1.0]), row("t1", "a " * 200, turn_rewards=[1.0])]
    fine, lost = pool.score(rows)
    (value,) = expected(directory, [conversation(rows[0], observations=False)])  # type: ignore[list-item]
    assert fine.score == pytest.approx(1.0 + weight * value, abs=1e-5)
    assert fine.parts["reward_model:mine"] == pytest.approx(value, abs=1e-5)
    assert fine.correct is True
    if weight:
        assert (lost.score, lost.outcome) == (None, Outcome.ERROR)
        assert "reward_model:mine: 206 tokens" in lost.detail
    else:
        assert lost.score == 1.0
        assert "206 tokens" in lost.failures["reward_model:mine"].detail
