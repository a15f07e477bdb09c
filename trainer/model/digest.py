"""A digest of tensors over their bits: the same however they are spread over ranks, made where they lie, in one reading.

    S(T) = Σ_i w_i · u(⌊i/R⌋) · v(i mod R)   mod 2⁶⁴

w_i is the bit pattern of element i of tensor T, as an integer, and u, v are odd pseudo-random keys of its position, so that what
changes, moves or swaps values changes the sum: a single changed element always, anything else but for a chance of about 2⁻³²
or less (multilinear hashing: Carter and Wegman 1979, "Universal classes of hash functions"). That chance is for types of up to 4
bytes, which are all that is trained: of 8-byte types two flipped signs cancel, 2⁶³·(k_i ± k_j) being 0. A sum of parts needs no order, so each
rank adds up its own part. The digest is SHA-256 over name, type, shape and S of every tensor, by name. It finds faults; against
forgers there are the checksums of files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentrl.trainer.model.ranks import Ranks

ROW = 2**14
"""R: positions that share the key u."""
ROWS_AT_A_TIME = {"cpu": 2**4, "cuda": 2**8}
"""Products are made for so many rows at once: 2 and 32 MiB, which the caches hold."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MASK = 2**64 - 1


@torch.no_grad()
def digest(tensors: Iterable[tuple[str, Tensor]], ranks: Ranks) -> str:
    """Return the digest of named tensors.

    Args:
        tensors: Names and tensors. All ranks must call it together, each with its part of those that are spread.
        ranks: The trainer's ranks.

    Returns:
        A SHA-256 in hexadecimal, the same on all ranks.
    """
    parts = [(f"{name} {tensor.dtype} {list(tensor.shape)}", _own_part(tensor, ranks)) for name, tensor in tensors]
    totals = ranks.all_reduce_integers([value & _MASK for value in _on_host([part for _, part in parts])])
    lines = (f"{about} {total & _MASK:016x}\n" for (about, _), total in zip(parts, totals, strict=True))
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _on_host(sums: list[Tensor]) -> list[int]:
    """Return the sums as integers, with one copy from each device."""
    found: dict[int, int] = {}
    for device in {value.device for value in sums}:
        own = [i for i, value in enumerate(sums) if value.device == device]
        found |= zip(own, torch.stack([sums[i] for i in own]).tolist(), strict=True)
    return [found[i] for i in range(len(sums))]


def _own_part(tensor: Tensor, ranks: Ranks) -> Tensor:
    """Return [] int64, S over the elements of this rank."""
    if isinstance(tensor, DTensor):
        # Spread as `Ranks.distribute` does: whole rows of the first dimension, as many on each rank, the last ones fewer.
        rows = -(-tensor.shape[0] // tensor.device_mesh.size())
        first = min(rows * tensor.device_mesh.get_local_rank(), tensor.shape[0])
        return _sum(tensor.to_local(), first * (tensor.numel() // max(1, tensor.shape[0])))
    if ranks.rank:  # every rank has it whole
        return torch.zeros((), dtype=torch.int64)
    return _sum(tensor, 0)


def _sum(tensor: Tensor, start: int) -> Tensor:
    """Return [] int64, S over elements that begin at position `start` of their tensor."""
    bits = tensor.detach().contiguous().reshape(-1).view(_INTEGERS[tensor.element_size()])
    columns = _columns(bits.device)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    at_a_time = ROWS_AT_A_TIME[bits.device.type]
    done = 0
    while done < len(bits):
        row, column = divmod(start + done, ROW)
        whole_rows = (len(bits) - done) // ROW
        if column == 0 and whole_rows:
            count = min(whole_rows, at_a_time)
            part = bits[done : done + count * ROW].view(count, ROW)
            total += ((part * columns).sum(1) * _row_keys(row, count, bits.device)).sum()
            done += count * ROW
        else:
            part = bits[done : done + ROW - column]
            total += ((part * columns[column : column + len(part)]).sum() * _row_keys(row, 1, bits.device)).sum()
            done += len(part)
    return total


def _row_keys(row: int, count: int, device: torch.device) -> Tensor:
    """Return [count] the keys u from `row` on."""
    first = _first_rows(device)
    if row + count <= len(first):
        return first[row : row + count]
    return _keys(torch.arange(ROW + row, ROW + row + count, device=device))


@cache
def _first_rows(device: torch.device) -> Tensor:
    """Return [R] the first keys u: small tensors need no others, and there are many of them."""
    return _keys(torch.arange(ROW, 2 * ROW, device=device))


@cache
def _columns(device: torch.device) -> Tensor:
    """Return [R] the keys v."""
    return _keys(torch.arange(ROW, device=device))


def _keys(positions: Tensor) -> Tensor:
    """Return odd numbers that look random: the mixing function of SplitMix64 (Steele, Lea and Flood 2014), modulo its shifts' signs."""
    mixed = (positions + 1) * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> shift)) * _signed(factor)
    return (mixed ^ (mixed >> 31)) | 1


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
