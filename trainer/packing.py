"""Trajectories packed so that nothing is computed twice: the tokens that several share are in a pack once.

    episode 1   system  task  call a  result a  answer          system ─┬─ task ─┬─ call a  result a  answer
    episode 2   system  task  call b  result b  answer     ─►           │        └─ call b  result b  answer
    episode 3   system  other call c  answer                            └─ other ── call c  answer

A pack is such a prefix tree (several, where nothing is shared) laid out depth first. A token attends to itself and to what
comes before it in its own trajectories: its ancestors. With `subtree_end[k]` the end of the part that descends from token
k, that is k ≤ q < subtree_end[k]. So each token has the hidden state that it would have alone, and the loss and gradients are
those of the trajectories one by one. What branches of an episode, attempts of a group, or all tasks share costs once;
unbranched trajectories are the special case of a tree that is a line.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class SequenceMap:
    """Which token belongs to which of S sequences, and which tokens count.

    For two sequences of three tokens, of which the first token of each is a prompt:

        sequence_index  [0, 0, 0, 1, 1, 1]
        loss_mask       [0, 1, 1, 0, 1, 1]
        sum(values)     [b+c, b+c, b+c, e+f, e+f, e+f] for values [a, b, c, d, e, f]
    """

    sequence_index: Tensor
    """[T] index of the token's sequence, from 0."""
    sequence_count: int
    """S."""
    loss_mask: Tensor
    """[T] bool."""

    def sum(self, values: Tensor) -> Tensor:
        """Add values up over the trained tokens of each sequence.

        Args:
            values: [T].

        Returns:
            [T] for every token the sum of its sequence.
        """
        totals = values.new_zeros(self.sequence_count).index_add(0, self.sequence_index, values * self.loss_mask)
        return totals[self.sequence_index]

    def mean(self, values: Tensor) -> Tensor:
        """Average values over the trained tokens of each sequence.

        Args:
            values: [T].

        Returns:
            [T] for every token the mean of its sequence; 0 where that has no trained token.
        """
        return self.sum(values) / self.lengths(values).clamp(min=1)

    def lengths(self, like: Tensor) -> Tensor:
        """Count the trained tokens of each sequence.

        Args:
            like: [T] a tensor of the type and device that the result has.

        Returns:
            [T] for every token the count of its sequence.
        """
        return self.sum(torch.ones_like(like))


@dataclass(frozen=True)
class TrainingSequence:
    """One trajectory of T tokens as tensors."""

    token_ids: Tensor
    """[T] int64."""
    loss_mask: Tensor
    """[T] bool: the tokens that are trained on."""
    behaviour_logprobs: Tensor
    """[T] log b; 0 where nothing was sampled."""
    versions: Tensor
    """[T] int64, the policy version that sampled the token; −1: not sampled."""
    temperatures: Tensor
    """[T] sampling temperature."""
    advantages: Tensor
    """[T] A of the token's turn; the critic replaces it where there is one."""
    rewards: Tensor
    """[T] the reward at the token, for a critic: that of a turn is at its last trained token."""
    turn_index: Tensor
    """[T] int64, which turn the token is of. Neighbours of different turns have different ones."""
    teacher_logprobs: Tensor | None = None
    """[T] log q of a teacher, where there is one."""
    truncated: bool = False
    """Whether it ends with a reply that was cut off for its length."""
    adapter: str = ""
    """The role whose adapter sampled the trained tokens, and learns from them; "": there is one policy."""
    episode: int = -1
    """Id of the episode, where figures of its tokens are kept (`agentrl.trainer.token_figures`); −1: none are."""

    def __len__(self) -> int:
        """Return T."""
        return int(self.token_ids.shape[0])


@dataclass(frozen=True)
class Segment:
    """Tokens `start` to `end` of a pack that all have the same ancestors, but for each other."""

    start: int
    end: int
    ancestors: tuple[tuple[int, int], ...]
    """Ranges of the tokens before them, in order."""


@dataclass(frozen=True)
class Pack:
    """Prefix trees of `N` tokens in all, and the `M` tokens in them that are trained on."""

    token_ids: Tensor
    """[N]."""
    position_ids: Tensor
    """[N] index in the token's own trajectories."""
    subtree_end: Tensor
    """[N] where the tokens that descend from it end."""
    source: Tensor
    """[M] the token whose hidden state predicts the trained token: the one before it."""
    targets: Tensor
    """[M] ids of the trained tokens."""
    behaviour_logprobs: Tensor
    """[M] log b."""
    versions: Tensor
    """[M] the policy version that sampled the token."""
    temperatures: Tensor
    """[M] sampling temperature."""
    advantages: Tensor
    """[M] A."""
    rewards: Tensor
    """[M] the reward at the token, for a critic."""
    turn_index: Tensor
    """[M] which turn of its trajectory the token is of."""
    sequence_index: Tensor
    """[M] which of the S trajectories the token is of."""
    truncated_end: Tensor
    """[S] of each trajectory the last token, where the reply there was cut off for its length; else −1."""
    episodes: Tensor
    """[S] id of each trajectory's episode, where figures of its tokens are kept; else −1."""
    sequence_count: int
    """S."""
    teacher_logprobs: Tensor | None = None
    """[M] log q of a teacher, where there is one."""

    def __len__(self) -> int:
        """Return N."""
        return int(self.token_ids.shape[0])

    @property
    def trained_tokens(self) -> int:
        """M."""
        return int(self.targets.shape[0])

    @property
    def sequence_map(self) -> SequenceMap:
        """Which trajectory each trained token is of."""
        trained = torch.ones_like(self.sequence_index, dtype=torch.bool)
        return SequenceMap(self.sequence_index, self.sequence_count, trained)

    def to(self, device: torch.device) -> Pack:
        """Return the pack on another device."""
        columns: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: value.to(device) for name, value in columns.items()})

    @cached_property
    def block_mask(self) -> Any:
        """The mask of FlexAttention: which token attends to which."""
        from torch.nn.attention.flex_attention import create_block_mask

        ends, size = self.subtree_end, len(self)

        def descends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < ends[key])

        return create_block_mask(descends, None, None, size, size, device=str(ends.device))

    @cached_property
    def segments(self) -> list[Segment]:
        """The trees as runs of tokens without a branch."""
        ends, positions = self.subtree_end.tolist(), self.position_ids.tolist()
        segments: list[Segment] = []
        path: list[Segment] = []
        start = 0
        for k in range(1, len(ends) + 1):
            # A run goes on while the next token follows this one, and nothing else does.
            if k < len(ends) and positions[k] == positions[k - 1] + 1 and ends[k] == ends[k - 1]:
                continue
            while path and ends[path[-1].start] <= start:
                path.pop()
            ranges: list[tuple[int, int]] = []
            for above in path:
                if ranges and ranges[-1][1] == above.start:
                    ranges[-1] = (ranges[-1][0], above.end)
                else:
                    ranges.append((above.start, above.end))
            segments.append(Segment(start, k, tuple(ranges)))
            path.append(segments[-1])
            start = k
        return segments


def first_fit_decreasing(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Fill bins with items, the longest first, each into the first bin that has room.

    Args:
        lengths: One an item.
        budget: What a bin holds. An item above it has a bin of its own.

    Returns:
        [bin][item] indices of `lengths`.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = next((b for b, left in enumerate(room) if left >= lengths[index]), None)
        if fitting is None:
            bins.append([index])
            room.append(budget - lengths[index])
        else:
            bins[fitting].append(index)
            room[fitting] -= lengths[index]
    return bins


def pack_sequences(sequences: Sequence[TrainingSequence], budget: int, *, ordered: bool = False) -> list[Pack]:
    """Lay sequences into packs, what they share counted once.

    Args:
        sequences: In any order; or in tree order, and so `ordered` says.
        budget: Tokens of a pack. A sequence above it has a pack of its own.
        ordered: Whether `sequences` are in tree order already.

    Returns:
        [pack], each of M trained tokens of S sequences.
    """
    if not sequences:
        return []
    if not ordered:
        sequences = in_tree_order(sequences)
    shared = _shared_with_previous(sequences)
    runs = sorted(_runs(sequences, shared, budget))  # in tree order too
    bins = first_fit_decreasing([size for _, _, size in runs], budget)
    packs = []
    for chosen in bins:
        members = [i for run in sorted(chosen) for i in range(*runs[run][:2])]
        # In tree order, two sequences share what all between them do.
        common = [0, *(min(shared[i + 1 : j + 1]) for i, j in itertools.pairwise(members))]
        packs.append(_prefix_tree([sequences[i] for i in members], common))
    return packs


def in_tree_order(sequences: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    """Return the sequences sorted by their ids: those that share the longest beginnings are neighbours."""
    # Ids are not negative, so their big-endian bytes compare as they do.
    return sorted(sequences, key=lambda s: s.token_ids.numpy().astype(">i8").tobytes())


def prefix_tree(sequences: Sequence[TrainingSequence]) -> Pack:
    """Lay sequences, which must be in tree order, into one pack."""
    return _prefix_tree(sequences, _shared_with_previous(sequences))


def shared_prefix(one: TrainingSequence, other: TrainingSequence) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    shorter = min(len(one), len(other))
    different = one.token_ids[:shorter].numpy() != other.token_ids[:shorter].numpy()
    return int(different.argmax()) if different.any() else shorter


def _shared_with_previous(sequences: Sequence[TrainingSequence]) -> list[int]:
    """Return [S] the tokens that each sequence has in common with the one before it; 0 for the first."""
    return [0, *(shared_prefix(one, other) for one, other in itertools.pairwise(sequences))]


def _prefix_tree(sequences: Sequence[TrainingSequence], common: Sequence[int]) -> Pack:
    """Lay sequences in tree order into one pack. `common`: [S] tokens shared with the one before."""
    ids: list[Tensor] = []
    positions: list[Tensor] = []
    sources: list[Tensor] = []
    trained: list[Tensor] = []
    ends = torch.empty(sum(map(len, sequences)), dtype=torch.long)
    path = torch.empty(0, dtype=torch.long)
    truncated_end: list[int] = []
    size = 0
    for s, shared in zip(sequences, common, strict=True):
        ends[path[shared:]] = size
        ids.append(s.token_ids[shared:])
        positions.append(torch.arange(shared, len(s)))
        path = torch.cat([path[:shared], torch.arange(size, size + len(s) - shared)])
        size += len(s) - shared
        truncated_end.append(int(path[-1]) if s.truncated else -1)
        rows = s.loss_mask.nonzero().squeeze(-1)
        trained.append(rows[rows > 0])  # nothing predicts a first token
        sources.append(path[trained[-1] - 1])
    ends[path] = size

    def trained_tokens(name: str) -> Tensor:
        return torch.cat([getattr(s, name)[rows] for s, rows in zip(sequences, trained, strict=True)])

    return Pack(
        token_ids=torch.cat(ids),
        position_ids=torch.cat(positions),
        subtree_end=ends[:size],
        source=torch.cat(sources),
        targets=trained_tokens("token_ids"),
        behaviour_logprobs=trained_tokens("behaviour_logprobs"),
        versions=trained_tokens("versions"),
        temperatures=trained_tokens("temperatures"),
        advantages=trained_tokens("advantages"),
        rewards=trained_tokens("rewards"),
        turn_index=trained_tokens("turn_index"),
        sequence_index=torch.repeat_interleave(
            torch.arange(len(trained)), torch.tensor([len(rows) for rows in trained])
        ),
        truncated_end=torch.tensor(truncated_end, dtype=torch.long),
        episodes=torch.tensor([s.episode for s in sequences]),
        sequence_count=len(sequences),
        teacher_logprobs=None if sequences[0].teacher_logprobs is None else trained_tokens("teacher_logprobs"),
    )


def _runs(ordered: Sequence[TrainingSequence], shared: Sequence[int], budget: int) -> Iterator[tuple[int, int, int]]:
    """Cut sequences in tree order into runs (from, to, tokens) of at most `budget`, where the least is shared.

    `shared`: [S] tokens that each has in common with the one before it.
    """
    added = list(itertools.accumulate((len(s) - common for s, common in zip(ordered, shared, strict=True)), initial=0))

    def size(start: int, end: int) -> int:
        return added[end] - added[start] + shared[start]

    todo = [(0, len(ordered))]
    while todo:
        start, end = todo.pop()
        if size(start, end) <= budget or end - start == 1:
            yield start, end, size(start, end)
            continue
        least = min(shared[start + 1 : end])
        cuts = [start, *(i for i in range(start + 1, end) if shared[i] == least), end]
        run = start
        for begin, stop in itertools.pairwise(cuts):
            # Neighbours that share something stay together while they fit; those that share nothing may go anywhere.
            if run < begin and (least == 0 or size(run, stop) > budget):
                todo.append((run, begin))
                run = begin
        todo.append((run, end))
