"""DPO and KTO through the real learner, beside closed forms on the model's own forward pass."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlcore.cluster.in_process import InProcessCluster
from rlcore.cluster.types import Placement
from rlcore.learner.pool import LearnerPool
from rlcore.learner.spec import LearnerSpec
from rlcore.results.metrics import stage_metrics
from rlcore.store.artifacts import ArtifactStore, Lineage
from rlcore.supervised.loop import SupervisedTraining
from rlcore.supervised.preference import (
    PreferenceBatches,
    check_start,
    other_sequences,
    others_of,
    prepare,
    reference_table,
    unbalanced,
)
from rlcore.supervised.preferences import Preferences, Ranked, preferences_table
from schemas.errors import UserError
from schemas.model import Adapter
from schemas.optimizer import Optimizer
from schemas.preference import PreferenceSection
from schemas.reward_model import FilePreferences
from schemas.tables import PREFERENCES, TABLES
from tests.rlcore.learner.samples import write_tiny_model

DATA = FilePreferences(path="pairs.jsonl")
LR = 3e-3


def section_of(**settings: Any) -> PreferenceSection:
    optimizer = Optimizer(lr=LR, weight_decay=0.0)
    return PreferenceSection(data=DATA, **{"optimizer": optimizer, "batch_size": 4, **settings})


def make_pairs(count: int, *, split: str = "train", seed: int = 0) -> pl.DataFrame:
    """Prompts with two responses, of which the better ends with token 1 and the other with 2."""
    generator = np.random.default_rng(seed)
    rows, token_ids, starts = [], [], []
    for number in range(count):
        prompt = generator.integers(10, 61, generator.integers(2, 6)).tolist()
        for sample in range(2):
            rows.append(Ranked(f"{split}{number}", split, "s", sample, [], "", sample + 1))
            middle = generator.integers(10, 61, generator.integers(1, 9)).tolist()
            token_ids.append([*prompt, *middle, sample + 1])
            starts.append(len(prompt))
    return PREFERENCES.validate(preferences_table(rows, token_ids, starts))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy")
    write_tiny_model(path)
    return path


@pytest.fixture
def learner_of(model_dir: Path) -> Iterator[Callable[..., LearnerPool]]:
    cluster = InProcessCluster()

    def build(**settings: Any) -> LearnerPool:
        spec = LearnerSpec(
            device="cpu",
            **{
                "model_dir": str(model_dir),
                "lr": LR,
                "weight_decay": 0.0,
                "grad_clip": None,
                **settings,
            },
        )
        worker = cluster.spawn(
            "rlcore.learner.learner:Learner",
            spec,
            0,
            1,
            ("", 0),
            name="preference",
            placement=Placement(),
        )
        return LearnerPool([worker])

    yield build
    cluster.close()


def batches_of(
    section: PreferenceSection, table: pl.DataFrame, learner: LearnerPool
) -> PreferenceBatches:
    reference = TABLES["reference_logprobs"].validate(reference_table(learner, table, section))
    return PreferenceBatches(section, table, reference, learner=learner, seed=0)


def whole_logprobs(model: Any, ids: list[int], start: int) -> torch.Tensor:
    """The log-probs of the response, by a forward pass of this sequence alone."""
    logits = model(torch.tensor([ids])).logits[0, :-1]
    return logits.log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])][start - 1 :]


def moved(model_dir: Path) -> tuple[Any, Any]:
    """The policy, a little way off, and the reference, as transformers loads them."""
    reference = AutoModelForCausalLM.from_pretrained(model_dir).eval()
    policy = AutoModelForCausalLM.from_pretrained(model_dir).eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return policy, reference


def rows_of(table: pl.DataFrame) -> list[tuple[list[int], int]]:
    return list(table.select("token_ids", "prompt_tokens").iter_rows())


def norm(model: Any) -> float:
    return float(sum((p.grad.double() ** 2).sum() for p in model.parameters())) ** 0.5


@pytest.mark.parametrize("tokens", [4096, 64])
@pytest.mark.parametrize("settings", [{"label_smoothing": 0.1, "rpo_alpha": 0.7}, {"loss": "ipo"}])
def test_a_dpo_step_is_that_of_the_unpacked_model(
    settings: dict[str, Any], tokens: int, model_dir: Path, tmp_path: Path, learner_of
) -> None:
    """Loss, gradient norm and TRL's metrics, in one micro-batch and in several."""
    policy, reference = moved(model_dir)
    policy.save_pretrained(tmp_path / "moved")
    (tmp_path / "moved" / "tokenizer.json").write_text("{}")
    table, section = make_pairs(6), section_of(batch_size=6, **settings)
    known = reference_table(learner_of(), table, section)
    learner = learner_of(model_dir=str(tmp_path / "moved"), micro_batch_tokens=tokens)
    batches = PreferenceBatches(section, table, known, learner=learner, seed=0)
    found = learner.step([batches.term(0)], LR)

    losses, h, lp, lengths = [], [], [], []
    for ids, start in rows_of(table):
        mine = whole_logprobs(policy, ids, start).double()
        with torch.no_grad():
            other = whole_logprobs(reference, ids, start).double()
        lp.append(mine.sum())
        h.append((mine - other).sum())
        lengths.append(len(ids) - start)
    for w in range(0, 12, 2):
        d = h[w] - h[w + 1]
        if settings.get("loss") == "ipo":
            losses.append((h[w] / lengths[w] - h[w + 1] / lengths[w + 1] - 5.0) ** 2)
        else:
            smooth = 0.9 * (1 + (-0.1 * d).exp()).log() + 0.1 * (1 + (0.1 * d).exp()).log()
            losses.append(smooth - 0.7 * lp[w] / lengths[w])
    loss = torch.stack(losses).mean()
    loss.backward()
    assert found["preference/loss"] == pytest.approx(float(loss.detach()), abs=1e-6, rel=1e-6)
    assert found["preference/grad_norm"] == pytest.approx(norm(policy), rel=1e-5)
    scores = np.array([float(one.detach()) for one in h])
    if settings.get("loss") == "ipo":
        scores = scores / np.array(lengths)
    wanted = {
        "rewards/chosen": 0.1 * scores[::2].mean(),
        "rewards/rejected": 0.1 * scores[1::2].mean(),
        "rewards/accuracies": (scores[::2] > scores[1::2]).mean(),
        "rewards/margins": 0.1 * (scores[::2] - scores[1::2]).mean(),
        "logps/chosen": float(torch.stack(lp[::2]).mean().detach()),
        "logps/rejected": float(torch.stack(lp[1::2]).mean().detach()),
    }
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-5, rel=1e-6)


@pytest.mark.parametrize("tokens", [4096, 64])
def test_a_kto_step_is_that_of_the_unpacked_model(
    tokens: int, model_dir: Path, tmp_path: Path, learner_of
) -> None:
    """Also z: the same whatever the micro-batch, from the pairs that the table says."""
    policy, reference = moved(model_dir)
    policy.save_pretrained(tmp_path / "moved")
    (tmp_path / "moved" / "tokenizer.json").write_text("{}")
    table = make_pairs(4)
    section = section_of(algorithm="kto", batch_size=8, beta=0.5, undesirable_weight=1.5)
    known = reference_table(learner_of(), table, section)
    learner = learner_of(model_dir=str(tmp_path / "moved"), micro_batch_tokens=tokens)
    batches = PreferenceBatches(section, table, known, learner=learner, seed=0)
    found = learner.step([batches.term(0)], LR)

    rows, mismatched = rows_of(table), []
    for index, (ids, start) in enumerate(rows):
        other, begin = rows[(index // 2 * 2 - 1) % 8]  # the row before this prompt's own two
        mixed = [*ids[:start], *other[begin:]]
        with torch.no_grad():
            scores = [whole_logprobs(m, mixed, start).double().sum() for m in (policy, reference)]
        mismatched.append(float(scores[0] - scores[1]))
    z = max(0.0, float(np.mean(mismatched)))
    losses = []
    for index, (ids, start) in enumerate(rows):
        with torch.no_grad():
            base = whole_logprobs(reference, ids, start).double().sum()
        h = whole_logprobs(policy, ids, start).double().sum() - base
        good = index % 2 == 0
        towards = h - z if good else z - h
        losses.append((1.0 if good else 1.5) * (1 - torch.sigmoid(0.5 * towards)))
    loss = torch.stack(losses).mean()
    loss.backward()
    assert found["kl"] == pytest.approx(z, abs=2e-6)
    assert found["preference/loss"] == pytest.approx(float(loss.detach()), abs=1e-6)
    assert found["preference/grad_norm"] == pytest.approx(norm(policy), rel=1e-5)


def trained(
    section: PreferenceSection,
    learner: LearnerPool,
    store: ArtifactStore,
    on_step: Callable[[Any], None] = lambda _: None,
    reference: pl.DataFrame | None = None,
) -> PreferenceBatches:
    table = pl.concat([make_pairs(16), make_pairs(6, split="validation", seed=5)])
    known = reference_table(learner, table, section) if reference is None else reference
    batches = PreferenceBatches(section, table, known, learner=learner, seed=0)
    training = SupervisedTraining(
        batches, section, learner=learner, store=store, key="k", lineage=Lineage("recipe", "code")
    )
    training.run(on_step, log=lambda _: None)
    training.publish(batches.validation())
    return batches


@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
@pytest.mark.parametrize("adapter", [None, Adapter(rank=4)], ids=["weights", "adapter"])
def test_it_learns_which_response_is_better(
    algorithm: str, adapter: Adapter | None, learner_of, tmp_path: Path
) -> None:
    """Held-out pairs, too; and it starts at its reference, with an adapter below that."""
    section = section_of(algorithm=algorithm, epochs=6, beta=0.5)
    learner = learner_of(adapter=adapter, lr=LR * (1 if adapter is None else 3))
    store = ArtifactStore(tmp_path / "store")
    first: list[dict[str, float]] = []
    trained(section, learner, store, lambda progress: first.append(progress.metrics))
    check_start(first[0], "float32")
    expected = np.log(2) if algorithm == "dpo" else 0.5
    assert first[0]["preference/loss"] == pytest.approx(expected, abs=1e-5)
    metrics = stage_metrics(store, "k")
    last = dict(metrics.filter(pl.col("step") == pl.col("step").max())["name", "value"].iter_rows())
    assert last["eval_rewards/margins"] > 0.5, last
    assert last["eval_preference/loss"] < expected - 0.1
    if algorithm == "dpo":
        assert last["rewards/accuracies"] == 1.0
        assert last["eval_rewards/accuracies"] > 0.6


@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_killed_and_resumed_is_as_if_never_killed(
    algorithm: str, learner_of, tmp_path: Path
) -> None:
    """Also KTO's z, which depends on the weights: those of the checkpoint."""

    class Killed(Exception):
        pass

    def die(progress: Any) -> None:
        if progress.step == 5:
            raise Killed

    section = section_of(algorithm=algorithm, checkpoint_every=3, epochs=2, max_steps=7)
    whole, store = learner_of(), ArtifactStore(tmp_path / "killed")
    table = pl.concat([make_pairs(16), make_pairs(6, split="validation", seed=5)])
    reference = reference_table(whole, table, section)
    trained(section, whole, ArtifactStore(tmp_path / "whole"), reference=reference)
    with pytest.raises(Killed):
        trained(section, learner_of(), store, die, reference=reference)
    resumed, steps = learner_of(), []
    trained(section, resumed, store, lambda progress: steps.append(progress.step))
    assert steps[0] == 4
    assert steps[-1] == 7
    assert resumed.stamp().digest == whole.stamp().digest


def test_an_epoch_is_every_prompt_once_with_its_pairs(learner_of) -> None:
    table, learner = make_pairs(10), learner_of()
    batches = batches_of(section_of(epochs=2), table, learner)
    assert batches.total_steps == 2 * 3
    terms = [batches.term(step) for step in range(3)]
    assert [vars(term.objective)["num_pairs"] for term in terms] == [4, 4, 2]
    assert sum(len(term.sequences) for term in terms) == table.height
    assert batches_of(section_of(max_steps=4, epochs=9), table, learner).total_steps == 4


def test_responses_are_cut_or_left_out_and_counted() -> None:
    rows = [Ranked(f"p{n // 2}", "train", "s", n % 2, [], "", n % 2 + 1) for n in range(6)]
    token_ids = [[5, 6, 7], [5, 6, 8, *range(9, 20)], [5] * 12, [5] * 13, [5, 1], [5, 2]]
    table = preferences_table(rows, token_ids, [2, 2, 10, 10, 1, 1])
    held = make_pairs(1, split="validation").with_columns(pl.col("token_ids").list.head(8))
    given = Preferences(pl.concat([table, held]), {})
    found = prepare(given, section_of(max_tokens=8))
    assert found.cut == 1
    assert found.left_out == {"no_response_left": 2}
    assert found.table["token_ids"].list.len().max() == 8
    dropped = prepare(given, section_of(max_tokens=8, drop_truncated=True))
    assert dropped.left_out == {"too_long": 3, "tied": 1}
    assert dropped.cut == 0
    short = pl.Series([[5, 6, 7, 8], [5, 6, 7, 9], *token_ids[2:]], dtype=pl.List(pl.Int32))
    equal = table.with_columns(token_ids=short)
    found = prepare(Preferences(pl.concat([equal, held]), {}), section_of(max_tokens=11))
    assert found.left_out == {"equal_tokens": 2}, "the second prompt's two, of eleven tokens each"


def test_nothing_to_learn_from_is_refused() -> None:
    tied = make_pairs(4).with_columns(pl.lit(1, pl.Int32).alias("rank"))
    with pytest.raises(UserError, match=r"^preference\.data give 8 responses to train prompts"):
        prepare(Preferences(tied, {}), section_of())
    long = tied.with_columns(pl.lit(40, pl.Int32).alias("prompt_tokens"))
    with pytest.raises(UserError, match=r"no training response of 8 within preference\.max_tokens"):
        prepare(Preferences(long, {}), section_of(algorithm="kto", max_tokens=8))


def test_a_row_is_read_with_the_response_to_another_prompt() -> None:
    assert others_of([b"a", b"a", b"b", b"c", b"c", b"a"]).tolist() == [4, 4, 1, 2, 2, 4]
    assert others_of([b"a", b"a"]).tolist() == [-1, -1]
    rows = [Ranked(f"p{n}", "train", "s", 0, [], "", 1) for n in range(2)]
    table = preferences_table(rows, [[5, 6, 7], [8, 9, 10, 11]], [2, 1])
    mixed = other_sequences(table, 4)
    assert mixed is not None
    assert [row.tolist() for row in mixed.token_ids] == [[5, 6, 9, 10], [8, 7]], "cut at four"
    assert mixed.loss_lengths.tolist() == [2, 1]
    assert other_sequences(table.head(1), 4) is None


def test_a_reference_of_another_model_is_found_at_the_first_step(learner_of) -> None:
    check_start({"preference/moved": 5e-5}, "float32")
    with pytest.raises(UserError, match=r"0\.3 nats per token"):
        check_start({"preference/moved": 0.3}, "bfloat16")
    table, learner, section = make_pairs(4), learner_of(), section_of()
    reference = reference_table(learner, table, section)
    wrong = reference.with_columns(pl.col("logprobs").list.eval(pl.element() - 1))
    batches = PreferenceBatches(section, table, wrong, learner=learner, seed=0)
    with pytest.raises(UserError, match="before its first step"):
        check_start(learner.step([batches.term(0)], LR), "float32")


@pytest.mark.parametrize(
    ("ranks", "settings", "said"),
    [
        ([1, 2, 2, 2, 2], {}, "the 1 desirable responses weigh 0.25 times as much as the 4 others"),
        ([1, 2, 2, 2, 2], {"desirable_weight": 4.0}, ""),
        (
            [1, 1, 1, 2],
            {},
            "weigh 3 times as much as the 1 others, and KTO wants 1 to 1.33",
        ),
        ([1, 1, 1, 2], {"undesirable_weight": 2.5}, ""),
        ([1, 2, 2, 2, 2], {"algorithm": "dpo"}, ""),
        ([1, 1], {}, ""),
    ],
)
def test_classes_out_of_balance_are_told(ranks: list[int], settings: dict, said: str) -> None:
    """KTO had made every form of an answer unlikely, and nothing said why."""
    table = pl.DataFrame({"split": ["train"] * len(ranks), "rank": ranks})
    found = unbalanced(table, section_of(**{"algorithm": "kto", **settings}))
    assert said in found if said else not found
