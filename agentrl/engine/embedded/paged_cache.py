"""Keys and values in pages that sequences which begin alike share, and a model's forward pass over them.

    open ─► pages of the longest known prefix ─► extend ─► compute ─► logits; pages that are full are known by their tokens
                                                                        │
    close ─► known pages stay until their room is needed, the one not used for longest first

A page is known by its tokens and the page before it, up to a root, which says what computed it: weights and adapter.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

PAGE_TOKENS = 16
"""Prompts share whole pages, so a small page shares more of a multi-turn prefix."""
PAGED = "agentrl_paged"
"""The name of this attention among transformers', which makes no mask for a name that it does not know."""
TOLERANCE = 1e-3
"""How far a logit may be from that of the model by itself, in float32 and in types of 16 bits."""

Key = tuple[Hashable, tuple[int, ...]]
"""The serial number of the page before, or a root; a page's tokens."""


@dataclass(eq=False)
class CachedSequence:
    """A sequence of tokens, and its pages."""

    tokens: list[int]
    parent: Hashable
    """The serial number of its last known page, or its root."""
    pages: list[int] = field(default_factory=list)
    length: int = 0
    """Of so many of its tokens, from the first on, the pages hold keys and values."""
    known: int = 0
    """How many of its pages, from the first on, are known by their tokens."""


class PagedCache:
    """The pages of a model: which are free, which are used, and which are known by their tokens."""

    def __init__(self, pages: int) -> None:
        self._free = list(range(pages))
        self._users = [0] * pages
        self._known: dict[Key, tuple[int, int]] = {}
        """Key → (page, its serial number)."""
        self._keys: dict[int, Key] = {}
        self._unused: dict[int, None] = {}
        """Known pages without a user, the one not used for longest first."""
        self._serials = itertools.count()
        self._layers: dict[int, torch.Tensor] = {}
        """By layer, [pages, PAGE_TOKENS, heads, key width + value width]."""

    @property
    def available(self) -> int:
        """Pages that a sequence could have now."""
        return len(self._free) + len(self._unused)

    def open(self, tokens: list[int], root: Hashable) -> CachedSequence:
        """Return a sequence with the known pages that its tokens begin with; its last token is always left to compute."""
        sequence = CachedSequence(tokens, root)
        while (sequence.known + 1) * PAGE_TOKENS < len(tokens):
            found = self._known.get(_next_key(sequence))
            if found is None:
                break
            page, sequence.parent = found
            self._unused.pop(page, None)
            self._users[page] += 1
            sequence.pages.append(page)
            sequence.known += 1
        sequence.length = sequence.known * PAGE_TOKENS
        return sequence

    def extend(self, sequence: CachedSequence, length: int) -> bool:
        """Give a sequence pages for `length` tokens. Returns whether there were enough; it keeps those that there were."""
        while len(sequence.pages) * PAGE_TOKENS < length:
            if not self._free:
                oldest = next(iter(self._unused), None)
                if oldest is None:
                    return False
                del self._unused[oldest], self._known[self._keys.pop(oldest)]
                self._free.append(oldest)
            page = self._free.pop()
            self._users[page] = 1
            sequence.pages.append(page)
        return True

    def commit(self, sequence: CachedSequence, length: int) -> None:
        """Note that keys and values of `length` tokens are there, and let others find the pages that are full."""
        sequence.length = length
        while (sequence.known + 1) * PAGE_TOKENS <= length:
            key, page = _next_key(sequence), sequence.pages[sequence.known]
            if key not in self._known:
                self._known[key] = page, next(self._serials)
                self._keys[page] = key
            sequence.parent = self._known[key][1]
            sequence.known += 1

    def close(self, sequence: CachedSequence) -> None:
        """Give the pages of a sequence back, the last first: those before it lead to it."""
        for page in reversed(sequence.pages):
            self._users[page] -= 1
            if not self._users[page]:
                if page in self._keys:
                    self._unused[page] = None
                else:
                    self._free.append(page)

    def write(self, layer: int, slots: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        """Write [T, heads, width] keys and values of a layer into slots [T], and return its pages."""
        if layer not in self._layers:
            # The memory of zeros is taken when it is written, page by page.
            self._layers[layer] = entries.new_zeros(len(self._users), PAGE_TOKENS, *entries.shape[1:])
        pages = self._layers[layer]
        pages.flatten(0, 1).index_copy_(0, slots, entries)
        return pages


def _next_key(sequence: CachedSequence) -> Key:
    start = sequence.known * PAGE_TOKENS
    return sequence.parent, tuple(sequence.tokens[start : start + PAGE_TOKENS])


@dataclass(eq=False)
class _Group:
    """Sequences that are attended to in one call, since as many tokens of each are computed."""

    new: int
    sequences: list[CachedSequence] = field(default_factory=list)
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    @cached_property
    def pages(self) -> torch.Tensor:
        """[sequences * most pages], each sequence's, padded with any."""
        most = max(len(s.pages) for s in self.sequences)
        return torch.tensor([page for s in self.sequences for page in s.pages + [0] * (most - len(s.pages))])

    @cached_property
    def ends(self) -> torch.Tensor:
        """[sequences] how many keys each has."""
        return torch.tensor([s.length + self.new for s in self.sequences])

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """Return [sequences, 1, new, most keys], added to the scores; None: each token sees all before it, and there are no others."""
        most = int(self.ends.max())
        if most == self.new <= (window or self.new):
            return None
        if window not in self._masks:
            keys = torch.arange(most)
            queries = (self.ends.unsqueeze(1) - self.new + torch.arange(self.new)).unsqueeze(-1)
            hidden = keys > queries
            if window is not None:
                hidden |= keys <= queries - window
            self._masks[window] = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf).unsqueeze(1)
        return self._masks[window]


def compute(model: Any, cache: PagedCache, chunks: Sequence[tuple[CachedSequence, int]]) -> torch.Tensor:
    """Compute the next tokens of sequences in one forward pass.

    Args:
        model: A causal LM that attends by pages.
        cache: Where its keys and values are.
        chunks: Sequences, which have the pages for it, and how many tokens of each. It is fastest with those alike side by side.

    Returns:
        [sequences, V] float32 logits after the last of each.
    """
    groups: list[_Group] = []
    for sequence, new in chunks:
        # Padding at most doubles what is read.
        if not groups or groups[-1].new != new or len(groups[-1].sequences[0].pages) > 2 * len(sequence.pages):
            groups.append(_Group(new))
        groups[-1].sequences.append(sequence)
    places = [(s, index) for s, new in chunks for index in range(s.length, s.length + new)]
    slots = [s.pages[index // PAGE_TOKENS] * PAGE_TOKENS + index % PAGE_TOKENS for s, index in places]
    logits = model(
        input_ids=torch.tensor([[s.tokens[index] for s, index in places]]),
        position_ids=torch.tensor([[index for _, index in places]]),
        logits_to_keep=torch.tensor([new for _, new in chunks]).cumsum(0) - 1,
        use_cache=False,
        paged_cache=cache,
        slots=torch.tensor(slots),
        groups=groups,
    ).logits[0]
    for sequence, new in chunks:
        cache.commit(sequence, sequence.length + new)
    return logits.float()


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    paged_cache: PagedCache | None = None,
    slots: torch.Tensor | None = None,
    groups: Sequence[_Group] = (),
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of new tokens to their own sequences' pages; outside `compute`, of one whole sequence to itself.

    `query`: [1, heads, T, D]; `key`, `value`: [1, kv_heads, T, D]; `slots`: [T] where each token's key and value go. Returns [1, T, heads, D].

    Raises:
        ValueError: The model caps its attention scores.
    """
    if softcap is not None:
        raise ValueError(
            "the embedded engine does not cap attention scores (attn_logit_softcapping); serve the model with SGLang"
        )
    attend = partial(F.scaled_dot_product_attention, scale=scaling, enable_gqa=True)
    if paged_cache is None or slots is None:
        return attend(query, key, value, is_causal=True).transpose(1, 2), None
    entries = torch.cat([key[0], value[0]], dim=-1).transpose(0, 1)
    pages = paged_cache.write(module.layer_idx, slots, entries)
    heads, start = [], 0
    for group in groups:
        count, mask = len(group.sequences), group.mask(sliding_window, query.dtype)
        rows = query[0, :, start : start + count * group.new].unflatten(1, (count, group.new)).transpose(0, 1)
        read = pages.index_select(0, group.pages).view(count, -1, *pages.shape[2:]).transpose(1, 2)
        keys, values = read[:, :, : int(group.ends.max())].split([key.shape[-1], value.shape[-1]], dim=-1)
        found = attend(rows, keys, values, attn_mask=mask, is_causal=mask is None)
        heads.append(found.transpose(1, 2).flatten(0, 1))
        start += count * group.new
    return torch.cat(heads).unsqueeze(0), None


@torch.inference_mode()
def use_paged_attention(model: Any) -> None:
    """Make a transformers causal LM attend by pages.

    Raises:
        ValueError: It computes other logits then: a layer of it needs more than the attention of tokens to those before them.
    """
    ids = [index % model.config.get_text_config().vocab_size for index in range(3 * PAGE_TOKENS)]
    expected = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    AttentionInterface.register(PAGED, paged_attention)
    # set_attn_implementation would look for a kernel behind the name.
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = PAGED
    cache = PagedCache(8)
    sequences = [cache.open(ids, number) for number in range(2)]
    for counts in ((20, 5), (1, 1)):
        chunks = list(zip(sequences, counts, strict=True))
        assert all(cache.extend(sequence, sequence.length + new) for sequence, new in chunks)
        logits = compute(model, cache, chunks)
        error = (logits - expected[[sequence.length - 1 for sequence in sequences]]).abs().max()
        if not error <= TOLERANCE:
            raise ValueError(
                f"{type(model).__name__} is none that the embedded engine can compute: a logit is {error:.3g} off"
            )
