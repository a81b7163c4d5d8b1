"""The Preferences table: responses of one prompt with their ranks, 1 the best, ties allowed; and
those sampled from the policy."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlcore.algorithms.seeds import stream_seed
from rlcore.data.rows import refused_token
from rlcore.data.write import table_of
from rlcore.engines.pool import EnginePool
from rlcore.engines.types import Sampling
from rlcore.models.chat import Message, Refused, encode_demonstrations
from rlcore.models.packing import Sequences
from rlcore.models.ragged import from_arrays, to_arrays
from rlcore.models.tokenizer import special_tokens
from rlcore.rollout.episodes import collect, in_order
from rlcore.rollout.trajectories import Request, Trajectory, joined
from rlcore.supervised.ranking import Place, Ranking
from schemas.errors import UserError
from schemas.reward_model import SampledPreferences

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class Ranked:
    """One response to ``prompt`` as text: a row of the table before tokenisation."""

    uid: str
    split: str
    data_source: str
    sample: int
    prompt: list[Message]
    response: str
    rank: int
    level: str | None = None
    verdicts: str | None = None  # of judges, as JSON


@dataclass(frozen=True)
class Preferences:
    """``table``: the Preferences contract. ``left_out``: responses that are not in it, by
    reason. ``cut``: responses in it that are not whole. ``pairs``: how a judge ranked them, by
    ``Ranking``."""

    table: pl.DataFrame
    left_out: dict[str, int]
    cut: int = 0
    pairs: Mapping[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """Prompts and responses per split, responses per level, and what was left out, by name."""
        splits = self.table.group_by("split", maintain_order=True).agg(
            prompts=pl.col("uid").n_unique(), responses=pl.len()
        )
        counts = {}
        for split, prompts, responses in splits.iter_rows():
            counts |= {f"{split}/prompts": prompts, f"{split}/responses": responses}
        levels = self.table.drop_nulls("level").group_by("level").len().sort("level")
        counts |= dict(levels.iter_rows()) | ({"cut": self.cut} if self.cut else {})
        counts |= {f"pairs/{what}": n for what, n in self.pairs.items()}
        return counts | {f"left_out/{reason}": n for reason, n in self.left_out.items()}

    def only(self, table: pl.DataFrame, reason: str, *, cut: int = 0) -> "Preferences":
        """Return these with the rows of ``table``, the others left out for ``reason``."""
        lost = self.table.height - table.height
        left_out = self.left_out | ({reason: lost} if lost else {})
        return replace(self, table=table, left_out=left_out, cut=self.cut + cut)


def encode(
    rows: Sequence[Ranked], tokenizer: "ChatTokenizer", *, max_reject_fraction: float = 1.0
) -> Preferences:
    """Tokenise ``rows`` by the chat template, as prompts and demonstrations are.

    Rows that the template refuses, or that hold a special token, are left out and counted by
    reason. Raises ``UserError`` where they are a larger share than ``max_reject_fraction``, and
    where ``encode_demonstrations`` does.
    """
    chats = [[*row.prompt, {"role": "assistant", "content": row.response}] for row in rows]
    whole = zip(chats, encode_demonstrations(tokenizer, chats, last_only=True), strict=True)
    special = special_tokens(tokenizer)
    encoded = [refused_token(special, chat) or tokens for chat, tokens in whole]
    refused = [tokens for tokens in encoded if isinstance(tokens, Refused)]
    if len(refused) > max_reject_fraction * len(rows):
        raise UserError(
            f"preferences: {len(refused)} of {len(rows)} responses rejected, over"
            f" data.max_reject_fraction = {max_reject_fraction:g}, such as {refused[0].detail};"
            " correct such rows or leave them out, or set a model.chat_template that takes them"
        )
    left_out = Counter(tokens.reason for tokens in refused)
    both = zip(rows, encoded, strict=True)
    kept = [(row, tokens) for row, tokens in both if not isinstance(tokens, Refused)]
    # the last turn's tokens are the last run of the mask, EOS included
    prompt_tokens = [len(t.loss_mask) - t.loss_mask[::-1].index(False) for _, t in kept]
    table = preferences_table(
        [row for row, _ in kept], [tokens.token_ids for _, tokens in kept], prompt_tokens
    )
    return Preferences(table, dict(left_out))


def preferences_table(
    rows: Sequence[Ranked], token_ids: Sequence[list[int]], prompt_tokens: Sequence[int]
) -> pl.DataFrame:
    """Return the table of ``rows`` with the tokens given for each."""
    tokens = from_arrays("token_ids", token_ids, pl.Int32)
    return table_of("preferences", rows, token_ids=tokens, prompt_tokens=list(prompt_tokens))


def fit(preferences: Preferences, max_tokens: int) -> Preferences:
    """Leave out responses of more than ``max_tokens``, prompt included."""
    fits = pl.col("token_ids").list.len() <= max_tokens
    return preferences.only(preferences.table.filter(fits), "too_long")


def cut(preferences: Preferences, max_tokens: int) -> Preferences:
    """Cut responses behind ``max_tokens`` tokens of prompt and response, and leave out those of
    which nothing remains. No stop token is put behind what is cut, which would teach to end there.
    """
    table = preferences.table.filter(pl.col("prompt_tokens") < max_tokens)
    long = int((table["token_ids"].list.len() > max_tokens).sum())
    table = table.with_columns(pl.col("token_ids").list.head(max_tokens))
    return preferences.only(table, "no_response_left", cut=long)


def without_equals(preferences: Preferences) -> Preferences:
    """Leave out prompts that have the same tokens at two ranks: of such a pair nothing is learnt.
    They are the same in the tokens that are left of them."""
    two_ranks = pl.col("rank").n_unique().over("uid", "token_ids") > 1
    table = preferences.table.filter(~two_ranks.any().over("uid"))
    return preferences.only(table, "equal_tokens")


def check_pairs(table: pl.DataFrame, at: str = "reward_model.preferences") -> None:
    """Raise ``UserError`` when a split has no two responses of unequal rank to one prompt; ``at``:
    the place in the recipe of where they are from."""
    for split in ("train", "validation"):
        rows = table.filter(pl.col("split") == split)
        if not comparable(rows).any():
            found = rows.group_by("level").len().sort("level").rows()
            raise UserError(
                f"{at} give {rows.height} responses to {split} prompts and no"
                f" prompt with two of unequal rank ({dict(found)}); take more prompts, a weaker"
                " policy, or other preferences"
            )


def contaminated(table: pl.DataFrame, prompts: pl.DataFrame, result: str) -> str | None:
    """Return a warning where prompts of ``table`` are test prompts of the dataset ``prompts``, of
    which ``result`` is then not independent; else None. They are compared by their tokens, as the
    uid of a file's row is of its responses, too."""
    test = set(map(tuple, to_arrays(prompts.filter(prompts["split"] == "test")["prompt_ids"])))
    asked = to_arrays(table.select(pl.col("token_ids").list.head("prompt_tokens")).to_series())
    tested = pl.Series([tuple(ids) in test for ids in asked], dtype=pl.Boolean)
    if not tested.any():
        return None
    return (
        f"{table.filter(tested)['uid'].n_unique()} prompts of the preferences are test prompts of"
        f" the dataset: {result} is not held out from them"
    )


def comparable(table: pl.DataFrame) -> pl.Series:
    """Return a mask of the rows whose prompt has responses of unequal rank."""
    return table.select(pl.col("rank").n_unique().over("uid") > 1).to_series()


def preference_sequences(table: pl.DataFrame) -> Sequences:
    """Return the rows as sequences without loss mask: a reward model is read at the last token."""
    token_ids = to_arrays(table["token_ids"])
    return Sequences(token_ids, [np.zeros(len(ids), dtype=bool) for ids in token_ids])


def on_every_token(sequences: Sequences, values: np.ndarray) -> list[np.ndarray]:
    """Return ``values`` [sequences] on all tokens of their sequence, float32."""
    pairs = zip(sequences.lengths.tolist(), values.tolist(), strict=True)
    return [np.full(length, value, dtype=np.float32) for length, value in pairs]


def by_prompt(table: pl.DataFrame) -> list[np.ndarray]:
    """Return the rows of each prompt, whose rows follow one another."""
    prompts = table["uid"].rle_id().to_numpy()
    cuts = np.flatnonzero(np.diff(prompts)) + 1
    return np.split(np.arange(len(prompts)), cuts) if len(prompts) else []


def joined_rows(prompts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of all ``prompts``, and which of these each row is of."""
    groups = np.repeat(np.arange(len(prompts)), [len(rows) for rows in prompts])
    return np.concatenate(prompts), groups


def sample_preferences(
    section: SampledPreferences,
    prompts: pl.DataFrame,
    *,
    seed: int,
    engines: EnginePool,
    tokenizer: Any,
    stop_ids: tuple[int, ...],
    rank: Callable[[Sequence[Trajectory]], Ranking],
) -> Preferences:
    """Return K responses to each chosen prompt of splits train and validation, as sampled and as
    ``rank`` orders them.

    ``stop_ids``: what ends a turn (``stop_tokens``), besides ``section.stop``. Which prompts, K
    and each response's seed are functions of (seed, uid, sample). Responses that the engine aborted
    or that could not be ranked are left out, and counted. Raises ``UserError`` when a split has no
    prompts, and what ``rank`` raises.
    """
    chosen = [
        *choose_prompts(prompts, "train", section.prompts, seed),
        *choose_prompts(prompts, "validation", section.validation_prompts, seed),
    ]
    requests = [
        Request(
            f"{prompt['uid']}-{sample:02d}",
            prompt,
            sample,
            stream_seed(seed, "preferences", prompt["uid"], sample),
        )
        for prompt in chosen
        for sample in range(num_responses(section, prompt["uid"], seed))
    ]
    sampling = Sampling(
        temperature=section.temperature,
        max_new_tokens=section.max_new_tokens,
        stop_token_ids=stop_ids,
        stop=section.stop,
    )
    trajectories = in_order(requests, collect(requests, sampling, engines, tokenizer))
    ranking = rank(trajectories)
    places = [(number, place) for number, place in enumerate(ranking.places) if not place.left_out]
    kept = [trajectories[number] for number, _ in places]
    table = preferences_table(
        [_ranked(trajectories[number], place) for number, place in places],
        [joined([trajectory]).token_ids.tolist() for trajectory in kept],
        [len(trajectory.request.prompt["prompt_ids"]) for trajectory in kept],
    )
    left_out = Counter(place.left_out for place in ranking.places if place.left_out)
    return Preferences(table, dict(left_out), pairs=ranking.pairs)


def _ranked(trajectory: Trajectory, place: Place) -> Ranked:
    prompt = trajectory.request.prompt
    return Ranked(
        uid=prompt["uid"],
        split=prompt["split"],
        data_source=prompt["data_source"],
        sample=trajectory.request.sample,
        prompt=prompt["prompt"],
        response=trajectory.text,
        rank=place.rank,
        level=place.level,
        verdicts=place.verdicts,
    )


def num_responses(section: SampledPreferences, uid: str, seed: int) -> int:
    """Return K of a prompt, uniform over min_responses..max_responses."""
    choices = section.max_responses - section.min_responses + 1
    return section.min_responses + stream_seed(seed, "preferences-k", uid) % choices


def choose_prompts(prompts: pl.DataFrame, split: str, count: int, seed: int) -> list[dict]:
    """Return at most ``count`` prompts of ``split`` as dicts, drawn by (seed, uid).

    Raises ``UserError`` when there is none.
    """
    rows = prompts.filter(pl.col("split") == split)
    if rows.is_empty():
        raise UserError(
            f"reward_model.preferences of kind 'samples' need {split} prompts and the dataset has"
            " none; set data.validation_fraction or add a source of that split"
        )
    order = pl.Series("order", [stream_seed(seed, "preferences", uid) for uid in rows["uid"]])
    chosen = rows.with_columns(order).sort("order").drop("order").head(count)
    return list(chosen.iter_rows(named=True))
