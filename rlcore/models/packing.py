"""Ragged sequences -> micro-batches of packed rows, and back. numpy only.

A micro-batch is ``[rows, row_tokens]`` with ``position_ids`` that restart at 0 for every document
and no attention mask: the model library derives the block-diagonal causal mask from the restarts
(only with ``use_cache=False`` and without ``attention_mask``, else it silently does not). Padding
is a document of its own; where the library derives no mask (``rlcore.learner.packing_check``), rows
hold one document, and positions continue through the padding behind it.

Every per-token quantity is addressed by its *target*: the token at place t of a sequence is
predicted at place t - 1, and log-probs, masks, advantages and weights of t are stored at t.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from rlcore.models.rows import Document, Layout, Part, prompts_of
from schemas.errors import UserError


@dataclass(frozen=True)
class Sequences:
    """Ragged token sequences and what is known per token.

    ``token_ids``: int arrays, prompt included. ``loss_mask``: bool arrays over the whole sequence,
    True on the tokens trained on; never on the first, which no token predicts. ``per_token``:
    float32 arrays aligned with ``token_ids`` (old_logprobs, ref_logprobs, advantages, ...); values
    outside the mask may be anything, also NaN. ``groups`` [sequences] int64: the prompt group of
    each, where an objective or aggregation asks for it.

    Raises ``UserError`` naming the sequence for an empty sequence, or a mask on the first token.
    """

    token_ids: list[np.ndarray]
    loss_mask: list[np.ndarray]
    per_token: dict[str, list[np.ndarray]] = field(default_factory=dict)
    groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        lengths = self.lengths
        assert self.groups is None or len(self.groups) == len(lengths), "a group per sequence"
        if len(lengths) and not lengths.min():
            raise UserError(f"token_ids[{int(lengths.argmin())}] is empty; drop it first")
        for name, arrays in {"loss_mask": self.loss_mask, **self.per_token}.items():
            assert np.array_equal(_lengths(arrays), lengths), f"{name} is not that of token_ids"
        first = np.array([mask[0] for mask in self.loss_mask], dtype=bool)
        if first.any():
            raise UserError(
                f"loss_mask[{int(first.argmax())}] is True on the first token, which no token "
                "predicts; start sequences with a prompt or BOS token"
            )

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def lengths(self) -> np.ndarray:
        """[sequences] int64, tokens each."""
        return _lengths(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Total number of tokens, prompts included."""
        return int(self.lengths.sum())

    @property
    def loss_lengths(self) -> np.ndarray:
        """[sequences] int64, True entries of each loss mask."""
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        starts = np.cumsum(self.lengths) - self.lengths
        return np.add.reduceat(np.concatenate(self.loss_mask).astype(np.int64), starts)

    def take(self, indices: np.ndarray) -> "Sequences":
        """Return the sequences at ``indices`` [any] (int), in that order."""
        order = np.asarray(indices, dtype=np.int64).tolist()
        return replace(
            self,
            token_ids=[self.token_ids[i] for i in order],
            loss_mask=[self.loss_mask[i] for i in order],
            per_token={name: [arrays[i] for i in order] for name, arrays in self.per_token.items()},
            groups=None if self.groups is None else np.asarray(self.groups)[order],
        )

    def target_lengths(self, targets: str) -> np.ndarray:
        """[sequences] int64, how many targets each has when packed for ``targets``."""
        return self.loss_lengths if targets == "loss_mask" else np.ones(len(self), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass. ``targets`` are the tokens whose log-prob or value is computed.

    ``input_ids``, ``position_ids``: [rows, row_tokens] int64. ``predictors`` [targets] int64: flat
    place (row x row_tokens + column) whose output is read for the target: the one before it, or
    under targets "last" its own. ``target_ids`` [targets] int64. ``sequences`` [targets] int64:
    sequence of each target. ``sources`` [targets] int64: place of the target in the concatenation
    of all sequences. ``num_tokens``: tokens of the sequences, without padding and with a prompt for
    each. ``documents``, ``continued``: [rows, row_tokens] int32, the document that a place belongs
    to, and the one before it that it attends to as well (or the same), both counted in the
    micro-batch, padding -1; None where no document continues another.
    """

    input_ids: np.ndarray
    position_ids: np.ndarray
    predictors: np.ndarray
    target_ids: np.ndarray
    sequences: np.ndarray
    sources: np.ndarray
    num_tokens: int
    documents: np.ndarray | None = None
    continued: np.ndarray | None = None


def pack(
    sequences: Sequences,
    *,
    micro_batch_tokens: int,
    row_tokens: int | None = None,
    targets: str = "loss_mask",
    whole_groups: bool = False,
    kept: np.ndarray | None = None,
    one_per_row: bool = False,
    share_prompts: bool = False,
) -> list[MicroBatch]:
    """Split ``sequences`` into micro-batches of at most ``micro_batch_tokens`` padded tokens.

    ``row_tokens`` None makes rows as long as the longest sequence, or some times as long where that
    costs less (``rlcore.models.rows``); a micro-batch is trimmed to its own longest row.
    ``targets``: "loss_mask"; "all" tokens that have a predecessor; or "last", one target per
    sequence, read at its last token itself. ``whole_groups``: the sequences of a group share a
    micro-batch. ``kept``: indices of the sequences to pack (default all). ``one_per_row``: each row
    holds one sequence and is padded to the longest of its micro-batch. ``share_prompts``: sequences
    that begin alike are packed as trees, unless ``targets`` are "all", which lie in prompts too.
    Raises ``UserError`` when a sequence does not fit a row, a row or group does not fit a
    micro-batch, or groups are required and ``sequences`` has none.
    """
    kept = np.arange(len(sequences)) if kept is None else kept
    if not len(kept):
        return []
    lengths = sequences.lengths
    width = int(lengths[kept].max()) if row_tokens is None else row_tokens
    if width > micro_batch_tokens:
        raise UserError(
            f"a packed row has {width} tokens and a micro-batch at most {micro_batch_tokens}; "
            "raise hardware.learner.micro_batch_tokens or shorten prompts and responses"
        )
    # Targets "all" lie in the prompt, too, where every sequence needs its own outputs; a tree
    # computes them once.
    shared = share_prompts and targets != "all" and not one_per_row
    prompts = prompts_of(sequences.token_ids, sequences.loss_mask) if shared else None
    layout = Layout(lengths, micro_batch_tokens, row_tokens, one_per_row, prompts)
    # A loss over pairs needs both outputs in one graph, so a group is never cut.
    if whole_groups:
        parts = layout.parts_of_groups(kept, groups_of(sequences))
    else:
        parts = layout.parts(kept)
    placed = _Placement(sequences, targets, one_per_row=one_per_row)
    return [placed.micro_batch(part) for part in parts]


def groups_of(sequences: Sequences) -> np.ndarray:
    """Return ``sequences.groups`` [sequences]; ``UserError`` when it is not set."""
    if sequences.groups is None:
        raise UserError(
            "the objective works on whole prompt groups and the batch has none; set "
            "Sequences.groups to the prompt of each sequence"
        )
    return np.asarray(sequences.groups)


class _Placement:
    """Places tokens of ``sequences`` in rows; arguments as in ``pack``."""

    def __init__(self, sequences: Sequences, targets: str, *, one_per_row: bool) -> None:
        self._one_per_row = one_per_row
        lengths = sequences.lengths
        self._starts = np.cumsum(lengths) - lengths
        self._token_ids = np.concatenate(sequences.token_ids).astype(np.int64)
        # A score is read at the last token itself, a log-prob where the token is predicted: one
        # before.
        self._shift = 0 if targets == "last" else 1
        self._wanted = np.ones(len(self._token_ids), dtype=bool)
        if targets == "loss_mask":
            self._wanted = np.concatenate(sequences.loss_mask).astype(bool)
        if targets == "last":
            self._wanted[:] = False
            self._wanted[self._starts + lengths - 1] = True
        else:
            # No token predicts the first one.
            self._wanted[self._starts] = False

    def micro_batch(self, part: Part) -> MicroBatch:
        """Lay out ``part``: [rows, tokens of a row]."""
        rows, width = part
        row_start = width * np.arange(len(rows))
        row_of = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        documents = [document for row in rows for document in row]
        member, begin, size, _ = np.array(documents, dtype=np.int64).T
        continued = _continued(documents)
        ends = np.cumsum(size)
        used = np.bincount(row_of, weights=size, minlength=len(rows)).astype(np.int64)
        before_row = np.cumsum(used) - used
        # Place of each document's first token, then of every token.
        first_place = row_start[row_of] + (ends - size) - before_row[row_of]
        within = np.arange(int(ends[-1])) - np.repeat(ends - size, size)
        place = np.repeat(first_place, size) + within
        # A branch counts on from the end of its prompt, as it would in its whole sequence.
        position = within + np.repeat(begin, size)
        source = np.repeat(self._starts[member], size) + position

        input_ids = np.zeros(len(rows) * width, dtype=np.int64)
        # The padding's positions restart at 0, which makes it a separate document. With one
        # document per row they continue instead: without a restart every attention kernel is plain
        # causal.
        counted_from = row_start + (0 if self._one_per_row else used)
        position_ids = np.arange(len(input_ids)) - np.repeat(counted_from, width)
        input_ids[place] = self._token_ids[source]
        position_ids[place] = position
        before = place - self._shift
        branches = np.flatnonzero(begin)
        if self._shift:  # an answer's first token is predicted at the last of its prompt
            last = first_place + size - 1
            before[(ends - size)[branches]] = last[continued[branches]]
        keep = self._wanted[source]
        in_no_branch = np.isin(np.arange(len(size)), continued[branches])
        shape = (len(rows), width)
        batch = MicroBatch(
            input_ids=input_ids.reshape(shape),
            position_ids=position_ids.reshape(shape),
            predictors=before[keep],
            target_ids=self._token_ids[source[keep]],
            sequences=np.repeat(member, size)[keep],
            sources=source[keep],
            # Tokens of whole sequences, so that rates compare with runs that do not share: a branch
            # counts its prompt, and the document of a shared prompt, which is no sequence, counts
            # nothing.
            num_tokens=int((begin + size)[~in_no_branch].sum()),
        )
        if not len(branches):
            return batch
        # Padding is of no document: a place attends to its own row's equals, itself included.
        numbers = np.full((2, len(input_ids)), -1, dtype=np.int32)
        numbers[:, place] = np.repeat([np.arange(len(size)), continued], size, axis=1)
        own, other = numbers.reshape(2, *batch.input_ids.shape)
        return replace(batch, documents=own, continued=other)


def _continued(documents: list[Document]) -> np.ndarray:
    """Return [documents] int64: which document each continues, its prompt's or itself."""
    prompts = {
        each.tree: at for at, each in enumerate(documents) if each.tree >= 0 and not each.begin
    }
    return np.array([prompts.get(each.tree, at) for at, each in enumerate(documents)])


def idle_micro_batch() -> MicroBatch:
    """A pass of two tokens for a rank that has no work left while others have.

    Collective operations need every rank in every pass; the loss of an idle pass is multiplied by
    0.
    """
    zero = np.zeros(1, dtype=np.int64)
    return MicroBatch(
        input_ids=np.zeros((1, 2), dtype=np.int64),
        position_ids=np.arange(2, dtype=np.int64)[None],
        predictors=zero,
        target_ids=zero,
        sequences=zero,
        sources=zero,
        num_tokens=0,
    )


def _lengths(arrays: list[np.ndarray]) -> np.ndarray:
    return np.fromiter((len(array) for array in arrays), dtype=np.int64, count=len(arrays))
