"""Weights from the trainer's memory into the servers', by NCCL or gloo, in buckets.

Trainer and servers form a process group: the trainer is rank 0, each server holds as many ranks as it has model shards. A
bucket is the bytes of some whole tensors, one after the other: SGLang's `flattened_bucket`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


@dataclass(frozen=True)
class Bucket:
    """Some tensors that are sent at once."""

    names: list[str]
    """[tensor]."""
    dtypes: list[str]
    """[tensor]."""
    shapes: list[list[int]]
    """[tensor][axis]."""
    data: torch.Tensor
    """[bytes] uint8: the tensors one after another."""

    def manifest(self) -> dict[str, Any]:
        """Return what a receiver must know before the bytes come."""
        return {"names": self.names, "dtypes": self.dtypes, "shapes": self.shapes}


def make_buckets(tensors: Iterable[tuple[str, torch.Tensor]], max_bytes: int) -> list[Bucket]:
    """Cut named tensors into buckets.

    Wide numbers come first, so that every tensor starts at a multiple of its number's size.

    Args:
        tensors: Names and tensors.
        max_bytes: Of a bucket. A tensor that is larger has one by itself.

    Returns:
        The buckets.
    """
    ordered = sorted(tensors, key=lambda pair: -pair[1].element_size())
    buckets: list[Bucket] = []
    members: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in ordered:
        if members and size + tensor.nbytes > max_bytes:
            buckets.append(_bucket(members))
            members, size = [], 0
        members.append((name, tensor))
        size += tensor.nbytes
    return [*buckets, _bucket(members)] if members else buckets


def _bucket(members: list[tuple[str, torch.Tensor]]) -> Bucket:
    return Bucket(
        names=[name for name, _ in members],
        dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in members],
        shapes=[list(tensor.shape) for _, tensor in members],
        data=torch.cat([tensor.detach().contiguous().flatten().view(torch.uint8) for _, tensor in members]),
    )


class WeightGroup:
    """Rank 0 of the process group over which weights go to the servers."""

    def __init__(self, address: str, port: int, world_size: int, name: str, backend: str, timeout_s: float) -> None:
        """Wait until all ranks have joined.

        Args:
            address: Where this process listens.
            port: Where this process listens.
            world_size: Ranks, this one included.
            name: Of the group.
            backend: "nccl" or "gloo".
            timeout_s: How long to wait.

        Raises:
            RuntimeError: They have not joined within `timeout_s`.
        """
        timeout = timedelta(seconds=timeout_s)
        # A store of its own, beside the one in which the trainer's ranks meet.
        store = dist.TCPStore(address, port, world_size, is_master=True, timeout=timeout, wait_for_workers=False)  # type: ignore[attr-defined]
        # A group of its own, beside the one of the trainer's ranks: `init_process_group` makes only the default one.
        self._group, _ = c10d._new_process_group_helper(
            world_size,
            0,
            [],
            c10d.Backend(backend),
            c10d.PrefixStore(name, store),
            group_name=c10d.GroupName(name),
            timeout=timeout,
        )
        c10d._world.pg_group_ranks[self._group] = {i: i for i in range(world_size)}

    def send(self, bucket: Bucket) -> None:
        """Broadcast one bucket.

        Args:
            bucket: The bucket.

        Raises:
            RuntimeError: A receiver is gone.
        """
        dist.broadcast(bucket.data, src=0, group=self._group)

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group(self._group)
