"""Where the ranks of a run's trainer are: on nodes of the cluster, each in an actor of its own, or on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from agentrl.config import RunConfig
from agentrl.errors import ClusterError, TrainerLostError
from agentrl.run.trainer_client import Hosts
from agentrl.system.host import Host, OpenHost


def rank_hosts(config: RunConfig, open_host: OpenHost) -> Hosts | None:
    """Return what opens the nodes of a trainer's ranks, anew whenever the trainer starts; None: they are on this machine.

    Args:
        config: The run.
        open_host: Opens a node for one process.
    """
    if not (config.cluster.address and config.cluster.ranks_on_nodes):
        return None

    @asynccontextmanager
    async def hosts() -> AsyncIterator[Sequence[Host]]:
        async with AsyncExitStack() as stack:
            try:
                opened = [
                    await stack.enter_async_context(open_host("TrainerRank", f"trainer's rank {rank}"))
                    for rank in range(config.trainer.ranks)
                ]
            except ClusterError as error:
                raise TrainerLostError(f"the trainer has no place: {error}") from error
            yield opened

    return hosts
