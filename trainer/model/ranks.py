"""The trainer's ranks: one process, or several that share the model (FSDP2, `fully_shard`) and every minibatch.

Every rank reads the same batch, makes the same packs and computes its share of them. A gradient is the sum over all packs, so
the number of ranks changes no result but for rounding. All are told each command; rank 0 alone answers, and has weights and
checkpoints on its machine's disk: others receive their part of what it reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from agentrl.errors import ConfigError, TrainerError
from agentrl.trainer.packing import Pack

T = TypeVar("T")


class RankZeroError(TrainerError):
    """A step that all ranks share failed on rank 0, which raises the error itself."""


@dataclass(frozen=True)
class Ranks:
    """Which of how many this process is. Made by `join_ranks`. All ranks must call a method together, but for `shard`."""

    rank: int = 0
    size: int = 1

    def broadcast_object(self, value: T) -> T:
        """Return rank 0's value, on every rank."""
        if self.size == 1:
            return value
        objects: list[Any] = [value]
        dist.broadcast_object_list(objects, src=0)
        received: T = objects[0]
        return received

    def from_rank_zero(self, make: Callable[[], T]) -> T:
        """Make a value on rank 0 and share it.

        An error reaches all ranks in the same collective, so that none of them waits for a value that never comes.

        Args:
            make: What makes the value. Rank 0 alone calls it, and raises what it raises.

        Returns:
            The value, on every rank.

        Raises:
            RankZeroError: Rank 0 failed, and this is another.
        """
        if self.rank:
            shared: tuple[T] | str = self.broadcast_object("")
            if isinstance(shared, str):
                raise RankZeroError(shared)
            return shared[0]
        try:
            value = make()
        except Exception as error:
            self.broadcast_object(f"{type(error).__name__}: {error}")
            raise
        return self.broadcast_object((value,))[0]

    def on_rank_zero(self, read: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """Read tensors on rank 0, where they stay; an error reaches all ranks, as in `from_rank_zero`.

        Args:
            read: What reads them.

        Returns:
            The tensors on rank 0, {} on the others.
        """
        found: list[Mapping[str, Tensor]] = []
        self.from_rank_zero(lambda: found.append(read()))
        return found[0] if found else {}

    @torch.no_grad()
    def copy_from_rank_zero(self, parameter: Tensor, tensor: Tensor | None) -> None:
        """Fill a parameter, or what an optimizer remembers of one.

        Args:
            parameter: What is filled; of one that is spread over the ranks, this rank's part.
            tensor: All of it on rank 0, None on the others.
        """
        if not dist.is_initialized():
            assert tensor is not None
            parameter.copy_(tensor)
            return
        device = parameter.device_mesh.device_type if isinstance(parameter, DTensor) else parameter.device
        empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        full = empty if tensor is None else empty.copy_(tensor)
        if isinstance(parameter, DTensor):
            own = distribute_tensor(full, parameter.device_mesh, parameter.placements)
            parameter.to_local().copy_(own.to_local())
        else:
            dist.broadcast(full, src=0)
            parameter.copy_(full)

    def all_reduce(self, values: Sequence[float]) -> list[float]:
        """Return numbers added up over the ranks."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        numbers: list[float] = total.tolist()
        return numbers

    def all_gather(self, values: Tensor) -> Tensor:
        """Return the [n] tensors of all ranks, n of each its own, end to end, on the CPU."""
        if self.size == 1:
            return values.cpu()
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, values.cpu())
        return torch.cat(everyone)

    def shard(self, packs: Sequence[Pack]) -> list[Pack]:
        """Return this rank's packs.

        All ranks have as many, because they gather the weights together: where there are too few, a pack of one token, which trains
        nothing, fills up.
        """
        own = list(packs[self.rank :: self.size])
        missing = -(-len(packs) // self.size) - len(own)
        return own + [_empty_pack(packs[0])] * missing if missing else own

    def distribute(self, model: nn.Module, layers: Sequence[nn.Module], device: torch.device, *, offload: bool) -> None:
        """Bring a model to where it computes, its parameters spread over the ranks.

        Args:
            model: The model.
            layers: Its layers, each of which is gathered by itself when it computes.
            device: Where it computes.
            offload: Whether what is spread, its gradients and so the optimizer's state stay in CPU memory.
        """
        if self.size == 1 and not offload:
            model.to(device)
            return
        mesh = init_device_mesh(device.type, (self.size,))
        policy = CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy()
        for layer in layers:
            fully_shard(layer, mesh=mesh, offload_policy=policy)
        # By default the outermost stays gather_full_tensors until a backward pass, which a pass for logprobs alone has none of.
        fully_shard(model, mesh=mesh, reshard_after_forward=True, offload_policy=policy)


def join_ranks(timeout_s: float, *, offload: bool = False) -> Ranks:
    """Join the ranks among which this process was started, as environment variables say; there is one, if it was started otherwise.

    Args:
        timeout_s: How long a collective may take.
        offload: Whether parameters will be offloaded, which spreads them, if over one rank: that needs a process group too.

    Returns:
        This process among the ranks.

    Raises:
        ConfigError: The environment variables that say so are not numbers.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if _number_from_environment("WORLD_SIZE", 1) == 1:
        if offload:
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        return Ranks()
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    if torch.cuda.is_available():
        torch.cuda.set_device(_number_from_environment("LOCAL_RANK", 0))
    return Ranks(dist.get_rank(), dist.get_world_size())


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a parameter or gradient, gathered where it is spread over the ranks. All ranks must call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather_full_tensors(
    parameters: Iterable[tuple[str, Tensor]], ranks: Ranks, copy: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Gather parameters on rank 0, one after the other: no more than one is full on the other ranks at a time.

    Args:
        parameters: Names and tensors. All ranks must call it together, each with its parts.
        ranks: The trainer's ranks.
        copy: What rank 0 makes of each full tensor.

    Returns:
        The copies by name on rank 0, {} on the others.
    """
    copies = {}
    for name, parameter in parameters:
        tensor = full_tensor(parameter.detach())
        if ranks.rank == 0:
            copies[name] = copy(tensor)
    return copies


def _empty_pack(pack: Pack) -> Pack:
    """Return a pack of one token of `pack`, and no trajectory."""
    columns = {name: value[:0] for name, value in vars(pack).items() if isinstance(value, Tensor)}
    first = {name: getattr(pack, name)[:1] for name in ("token_ids", "position_ids")}
    end = torch.ones_like(pack.subtree_end[:1])
    return replace(pack, **{**columns, **first, "subtree_end": end, "sequence_count": 0})


def _number_from_environment(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"the environment variable {name} = {value!r} is not a number; unset it") from None
