"""The functions that a recipe names: loaded in a separate process before the run, and each
reward called once on a handful of its rows."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from rlcore.algorithms.advantages import find_estimator
from rlcore.algorithms.losses import find_loss, policy_loss
from rlcore.rewards.link import environment_of
from rlcore.rewards.process import FunctionProcess, look_at_functions
from rlcore.rewards.registry import BUILTIN, build, reader_of
from rlcore.rewards.types import Reward, RewardRow
from schemas.errors import UserError
from schemas.names import JUDGE, by_workers
from schemas.outcomes import FinishReason, Outcome
from schemas.recipe import Recipe
from schemas.reward_model import VERIFIER
from schemas.rl import RewardFunction

CALLED = 8  # rows that each function is called on
_TELLING = 3  # right answers from which it says something that none is paid for
_LATE = 2  # of them after which it is called on no more
_WRONG = "I do not know."  # an answer that is none


@dataclass(frozen=True, slots=True)
class _Said:
    """What a function, ``named`` so in errors, said of its rows. ``right``: of each whether its
    response is a demonstration's, of a prompt that has a ground truth."""

    named: str
    function: RewardFunction
    right: list[bool]
    rewards: list[Reward]
    of_wrong: Reward | None  # of ``_WRONG``

    @property
    def of_right(self) -> list[Reward]:
        """The rewards with a score of right answers."""
        pairs = zip(self.rewards, self.right, strict=False)
        return [reward for reward, right in pairs if right and reward.score is not None]


def call_functions(
    recipe: Recipe,
    prompts: pl.DataFrame,
    demonstrations: pl.DataFrame,
    *,
    call_judges: bool = False,
) -> Iterator[str]:
    """Call each reward function under the limits of its worker; yield a sentence per doubt.

    The responses are answers of demonstrations where a prompt has one, else an answer made of its
    ground truth, and one that is none. The reward model and the environment's own rewards are not
    asked, judges only where ``call_judges``, and nothing is called where episodes have turns, or
    rewards run on an existing cluster. Raises UserError for a function with a weight that fails on
    more rows than a run allows, where verdicts are needed and none is given, and where all of the
    reward pays for none of the right answers.
    """
    if recipe.environment is not None or recipe.hardware.ray_address is not None:
        return
    said = []
    for index, function in enumerate(recipe.reward.functions):
        judge = function.name == JUDGE
        if not by_workers(function.name) or (judge and not call_judges):
            continue
        rows, right = _asked(function, prompts, demonstrations)
        if rows:
            named = f"reward.functions[{index}] = '{function.name}'"
            if judge:
                rewards = _ask_judge(recipe, function, rows[0])
            else:
                wrong = replace(rows[0], response=_WRONG, num_tokens=len(_WRONG) // 4)
                rewards = _call(recipe, index, [*rows, wrong])
            of_wrong = rewards.pop() if len(rewards) > len(rows) else None
            said.append(_Said(named, function, right, rewards, of_wrong))
    for one in said:
        yield from _failures(one, recipe)
        yield from _unread(one, recipe)
    _check_verdicts(said, recipe)
    yield from _unpaid(said, recipe)


def _call(recipe: Recipe, index: int, rows: Sequence[RewardRow]) -> list[Reward]:
    section = recipe.reward
    process = FunctionProcess(section, index, environment_of(section.env))
    rewards: list[Reward] = []
    try:
        for row in rows:
            rewards += process.score([row], section.timeout_s)
            late = sum(reward.outcome == Outcome.TIMEOUT for reward in rewards)
            if late and (late == _LATE or len(rewards) == 1):
                break
    except RuntimeError as error:
        name = section.functions[index].name
        raise UserError(f"reward.functions[{index}] = '{name}': {error}") from None
    finally:
        process.close()
    return rewards


def _ask_judge(recipe: Recipe, function: RewardFunction, row: RewardRow) -> list[Reward]:
    """Ask a judge about one row; answers that the store holds are not paid for again."""
    from rlcore.rewards.judge import JudgeFunction
    from rlcore.rewards.judges.setup import judge_setup, prepare_cache

    with tempfile.TemporaryDirectory() as scratch:
        setup = judge_setup(recipe)
        assert setup is not None, "the recipe holds the judges that it names"
        setup = replace(setup, folder=Path(scratch))
        prepare_cache(setup, recipe.store, lambda line: None)
        judge = JudgeFunction(function.options["judge"], setup)
        try:
            return judge.score([row], recipe.reward.timeout_s)
        finally:
            judge.close()


def _asked(
    function: RewardFunction, prompts: pl.DataFrame, demonstrations: pl.DataFrame
) -> tuple[list[RewardRow], list[bool]]:
    """Return rows that ``function`` scores, those with a demonstration first, and which are right
    (``_Said.right``)."""
    kinds = prompts.select("data_source", "reward_style").iter_rows()
    own = prompts.filter(pl.Series([function.scores(*kind) for kind in kinds], dtype=pl.Boolean))
    answers = _answers(demonstrations)
    keys = [_key(chat) for chat in own["prompt"].to_list()]
    order = sorted(range(len(keys)), key=lambda i: (keys[i] not in answers, i))[:CALLED]
    rows, right = [], []
    for number, prompt in zip(order, own[order].iter_rows(named=True), strict=True):
        answer, truth = answers.get(keys[number]), prompt["ground_truth"]
        text, tokens = answer or _made_up(truth)
        row = RewardRow.of_prompt(
            prompt,
            trajectory_id=prompt["uid"],
            response=text,
            finish_reason=FinishReason.STOP.value,
            num_tokens=tokens,
            token_ids=(),
        )
        rows.append(row)
        right.append(answer is not None and truth is not None)
    return rows, right


def _answers(demonstrations: pl.DataFrame) -> dict[str, tuple[str, int]]:
    """Return the answer of each demonstration of one turn and its tokens, by its prompt."""
    found: dict[str, tuple[str, int]] = {}
    columns = demonstrations.select("messages", pl.col("loss_mask").list.sum())
    for chat, tokens in columns.iter_rows():
        found.setdefault(_key(chat[:-1]), (chat[-1]["content"], tokens))
    return found


def _key(chat: Sequence[Mapping[str, str]]) -> str:
    return repr([(message["role"], message["content"]) for message in chat])


def _made_up(truth: str | None) -> tuple[str, int]:
    """Return an answer that most forms find ``truth`` in, and a number of tokens."""
    said = truth or "yes"
    text = f"<answer>{said}</answer>\nThe answer is \\boxed{{{said}}}.\n#### {said}"
    return text, 1 + len(text) // 4


def _failures(said: _Said, recipe: Recipe) -> Iterator[str]:
    section, rewards = recipe.reward, said.rewards
    tried = "answers of demonstrations" if any(said.right) else "made-up answers"
    late = [reward for reward in rewards if reward.outcome == Outcome.TIMEOUT]
    failed = [reward for reward in rewards if reward.score is None and reward not in late]
    for lost, bound, remedy in (
        (failed, section.max_error_fraction, "correct it"),
        (late, section.max_timeout_fraction, "make it faster or raise reward.timeout_s"),
    ):
        if not lost:
            continue
        detail = lost[0].detail[:300]
        variable = detail.removeprefix("KeyError: '").partition("'")[0]
        if variable in os.environ:
            remedy = f"name {variable} in reward.env, which alone it sees"
        sentence = (
            f"{said.named} gave no score for {len(lost)} of {len(rewards)} rows that it was tried"
            f" on ({tried}): {detail}"
        )
        if said.function.weight and len(lost) > bound * len(rewards):
            raise UserError(f"{sentence}; {remedy}")
        yield sentence


def _unread(said: _Said, recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for a function that reads right answers only."""
    wrong = said.of_wrong
    if wrong is not None and wrong.score is None and said.function.weight:
        bound = recipe.reward.max_error_fraction
        yield (
            f"{said.named} gave no score for the answer {_WRONG!r}: {wrong.detail[:300]}; a run"
            f" ends where more than reward.max_error_fraction = {bound:g} of its rows have none:"
            " return a score for wrong answers, too"
        )


def _unpaid(said: Sequence[_Said], recipe: Recipe) -> Iterator[str]:
    """Yield a sentence per function that pays for no right answer; raise where all are such."""
    terms = [function for function in recipe.reward.functions if function.weight]
    flat = [one for one in said if one.function.weight and _pays_nothing(one)]
    for one in flat:
        count = len(one.of_right)
        answer = one.of_right[0]
        shown = f", in which it reads {answer.answer!r}" if answer.answer else ""
        sentence = (
            f"{one.named} gives {answer.score:g} to each of the {count} answers of demonstrations"
            f" that it was tried on{shown}, though they are right"
        )
        if len(flat) == len(terms):
            raise UserError(
                f"{sentence}; correct the function, the ground truths, or the form of the answers"
                " (`rl-pipeline reward try` shows rows)"
            )
        yield sentence


def _pays_nothing(said: _Said) -> bool:
    """Whether all right answers are called wrong, or score 0."""
    rewards, name = said.of_right, said.function.name
    says_what_is_right = name not in BUILTIN or reader_of(name)  # of ours those that read a truth
    if len(rewards) < _TELLING or not says_what_is_right:
        return False
    verdicts = [reward.correct for reward in rewards if reward.correct is not None]
    if verdicts:
        return not any(verdicts)
    return all(reward.score == 0 for reward in rewards)


def _check_verdicts(said: Sequence[_Said], recipe: Recipe) -> None:
    """Raise UserError where verdicts on correctness are needed and no function gives any."""
    functions = recipe.reward.functions
    called = [one.function for one in said]
    if any(function not in called for function in functions):
        return  # what was not called may give them
    rewards = [reward for one in said for reward in one.rewards]
    if any(r.correct is not None for r in rewards) or all(r.score is None for r in rewards):
        return
    filtered, positive = recipe.rl.algorithm.dynamic_sampling, recipe.rl.algorithm.positive_nll
    needs = {
        "rl.algorithm.dynamic_sampling.metric = 'accuracy' needs verdicts on correctness": (
            filtered is not None and filtered.metric == "accuracy",
            "set metric to 'score'",
        ),
        "rl.algorithm.positive_nll needs verdicts on correctness": (
            positive.coef > 0 and positive.threshold is None,
            "set positive_nll.threshold",
        ),
    } | {
        f"{path} of kind 'samples' are ranked by verdicts on correctness": (
            section.ranked_by == VERIFIER,
            f"set {path}.ranked_by",
        )
        for path, section in recipe.sampled_preferences.items()
    }
    names = ", ".join(f"'{function.name}'" for function in functions)
    for need, (is_set, remedy) in needs.items():
        if is_set:
            raise UserError(
                f"{need}, and reward.functions {names} gave a score without one; return a dict with"
                f" score and acc, or {remedy}"
            )


ENGINE_S = 300.0  # an engine imports what vLLM does, which takes minutes at first; a loss, torch


def check_functions(recipe: Recipe) -> None:
    """Raise UserError for a function of the user that does not exist, cannot be imported, takes
    other arguments than it is called with, or lacks one of its options; and for an engine's class
    that lacks a method.

    They are imported as reward functions are: in a child process that has the variables of
    ``reward.env`` and none of the user's keys.
    """
    functions = _functions_of(recipe)
    if functions:
        # On an existing cluster rewards run elsewhere, where the variables may be others.
        named = [name for name in recipe.reward.env if name in os.environ]
        look_at_functions(functions, environment=environment_of(named))


def _functions_of(recipe: Recipe) -> list[dict[str, Any]]:
    reward, algorithm = recipe.reward, recipe.rl.algorithm
    memory_bytes = None if reward.memory_gib is None else int(reward.memory_gib * 2**30)
    named: list[tuple[str, Mapping[str, Any], str, bool]] = [
        (function.name, function.options, f"reward.functions[{index}].name", function.batch)
        for index, function in enumerate(reward.functions)
        if by_workers(function.name)
    ]
    clips = {name: getattr(algorithm, name) for name in ("clip_low", "clip_high", "clip_dual")}
    named += [
        (algorithm.advantage, algorithm.advantage_options, "rl.algorithm.advantage", False),
        (algorithm.policy_loss, clips, "rl.algorithm.policy_loss", False),
        (recipe.hardware.rollout.engine, {}, "hardware.rollout.engine", False),
    ]
    return [
        {
            "name": name,
            "options": dict(options),
            "path": path,
            "batch": batch,
            "loader": f"{__name__}:{load.__name__}",
            "memory_bytes": memory_bytes if path.startswith("reward.") else None,
            "limit_s": None if path.startswith("reward.") else ENGINE_S,
        }
        for name, options, path, batch in named
        if ":" in name
    ]


def load(name: str, options: Mapping[str, Any], path: str, batch: bool) -> None:
    """Load here, in the child process, what the recipe names at ``path``; ``batch``: it takes all
    rows of a prompt. Raises UserError when it cannot be called as the run would call it."""
    match path:
        case "rl.algorithm.advantage":
            find_estimator(name, options, path)
        case "rl.algorithm.policy_loss":
            import torch

            find_loss(name, path)
            two = torch.ones(2)
            policy_loss(name, two, -two, two, **options)
        case "hardware.rollout.engine":
            from rlcore.engines.own_engine import find_engine

            find_engine(name, path)
        case _:
            build(name, options, path.removesuffix(".name"), batch)
