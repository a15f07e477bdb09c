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

from agentrl.trainer.algorithms.objectives import Sequences


@dataclass(frozen=True)
class TrainingSequence:
    """One trajectory as tensors, each [T]."""

    token_ids: Tensor
    loss_mask: Tensor
    behaviour_logprobs: Tensor
    versions: Tensor
    temperatures: Tensor
    advantages: Tensor
    rewards: Tensor
    """What was earned with the token, for a critic: a turn's earnings are at its last trained token."""
    turns: Tensor
    """Number of the token's turn."""
    teacher_logprobs: Tensor | None = None
    """What a teacher gives to the token, where there is one."""
    truncated: bool = False
    """Whether it ends with a reply that was cut off for its length."""

    def __len__(self) -> int:
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
    """[N] place in the token's own trajectories."""
    subtree_end: Tensor
    """[N] where the tokens that descend from it end."""
    source: Tensor
    """[M] the token whose hidden state predicts the trained token: the one before it."""
    targets: Tensor
    """[M] ids of the trained tokens."""
    behaviour_logprobs: Tensor  # [M]
    versions: Tensor  # [M]
    temperatures: Tensor  # [M]
    advantages: Tensor  # [M]
    rewards: Tensor  # [M]
    turns: Tensor  # [M]
    index: Tensor
    """[M] number of the token's trajectory."""
    ends: Tensor
    """[S] of each trajectory the last token, where the reply there was cut off for its length; else −1."""
    count: int
    """S, the number of trajectories."""
    teacher_logprobs: Tensor | None = None  # [M]

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def tokens(self) -> int:
        """Tokens that are trained on."""
        return int(self.targets.shape[0])

    @property
    def sequences(self) -> Sequences:
        """Whose the trained tokens are."""
        return Sequences(self.index, self.count, torch.ones_like(self.index, dtype=torch.bool))

    def to(self, device: torch.device) -> Pack:
        """The same on another device."""
        columns: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: value.to(device) for name, value in columns.items()})

    @cached_property
    def block_mask(self) -> Any:
        """Who attends to whom, for FlexAttention."""
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
    """Indices of `lengths` in bins of at most `budget`; an item above the budget has a bin of its own."""
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = next((b for b, left in enumerate(room) if left >= lengths[index]), None)
        if place is None:
            bins.append([index])
            room.append(budget - lengths[index])
        else:
            bins[place].append(index)
            room[place] -= lengths[index]
    return bins


def pack(sequences: Sequence[TrainingSequence], budget: int) -> list[Pack]:
    """Lay `sequences` into packs of at most `budget` tokens, what they share counted once."""
    if not sequences:
        return []
    ordered = in_tree_order(sequences)
    found = list(_clusters(ordered, budget))
    return [
        prefix_tree([s for i in sorted(chosen) for s in ordered[found[i][0] : found[i][1]]])
        for chosen in first_fit_decreasing([size for _, _, size in found], budget)
    ]


def in_tree_order(sequences: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    """The sequences sorted by their ids: those that share the longest beginnings are neighbours."""
    return sorted(sequences, key=lambda s: s.token_ids.tolist())


def prefix_tree(sequences: Sequence[TrainingSequence]) -> Pack:
    """One pack of sequences in tree order."""
    ids: list[Tensor] = []
    positions: list[Tensor] = []
    sources: list[Tensor] = []
    rows: list[Tensor] = []
    ends = torch.empty(sum(map(len, sequences)), dtype=torch.long)
    path = torch.empty(0, dtype=torch.long)
    before: TrainingSequence | None = None
    last: list[int] = []
    size = 0
    for s in sequences:
        shared = 0 if before is None else shared_prefix(before, s)
        ends[path[shared:]] = size
        ids.append(s.token_ids[shared:])
        positions.append(torch.arange(shared, len(s)))
        path = torch.cat([path[:shared], torch.arange(size, size + len(s) - shared)])
        size += len(s) - shared
        last.append(int(path[-1]) if s.truncated else -1)
        trained = s.loss_mask.nonzero().squeeze(-1)
        rows.append(trained[trained > 0])  # nothing predicts a first token
        sources.append(path[rows[-1] - 1])
        before = s
    ends[path] = size

    def trained_tokens(name: str) -> Tensor:
        return torch.cat([getattr(s, name)[chosen] for s, chosen in zip(sequences, rows, strict=True)])

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
        turns=trained_tokens("turns"),
        index=torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(chosen) for chosen in rows])),
        ends=torch.tensor(last, dtype=torch.long),
        count=len(sequences),
        teacher_logprobs=None if sequences[0].teacher_logprobs is None else trained_tokens("teacher_logprobs"),
    )


def shared_prefix(one: TrainingSequence, other: TrainingSequence) -> int:
    """Tokens that two sequences have in common at their beginning."""
    shorter = min(len(one), len(other))
    different = (one.token_ids[:shorter] != other.token_ids[:shorter]).nonzero()
    return int(different[0]) if len(different) else shorter


def _clusters(ordered: Sequence[TrainingSequence], budget: int) -> Iterator[tuple[int, int, int]]:
    """Cut sequences in tree order into runs (from, to, tokens) of at most `budget`, where the least is shared."""
    shared = [0, *(shared_prefix(one, other) for one, other in itertools.pairwise(ordered))]
    added = torch.tensor([0, *(len(s) - common for s, common in zip(ordered, shared, strict=True))]).cumsum(0).tolist()

    def size(start: int, end: int) -> int:
        return int(added[end] - added[start]) + shared[start]

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
