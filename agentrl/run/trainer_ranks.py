"""The processes that a trainer consists of, each on its host: all are told every command, rank 0 answers, and none outlives another.

main process ──command──► rank 0 ◄──collectives──► rank 1 ◄──► ...        (torch.distributed; rank 0's host has its store)
▲  ◄──answer──────────┘                         │
└──the end of its output: it died───────────────┘
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import anyio

from agentrl.config import RunConfig
from agentrl.errors import AgentRLError, CheckpointError, ClusterError, TrainerLostError
from agentrl.system.child_process import Child
from agentrl.system.host import Host, OpenHost
from agentrl.system.tasks import background_tasks, in_thread

Hosts = Callable[[], AbstractAsyncContextManager[Sequence[Host]]]
"""Opens the machines of the ranks, each as often as it has some, for the length of a context."""
GRACE_S = 5.0
"""How long rank 0 has, once another rank ended, to say what they all saw."""


@contextmanager
def lost_with_machine() -> Iterator[None]:
    """Within the context, a machine that fails is a trainer that is lost: it is started again, where there are machines.

    Raises:
        TrainerLostError: In place of an error of a machine, and of a checkpoint that arrived damaged from one.
    """
    try:
        yield
    except (ClusterError, CheckpointError) as error:
        raise TrainerLostError(f"a machine of the trainer's failed: {error}") from error


class TrainerRanks:
    """The running ranks of a trainer. Open them with `open_ranks`."""

    def __init__(self, hosts: Sequence[Host], children: Sequence[Child]) -> None:
        self.hosts = hosts
        """The machine of each rank."""
        self._children = children
        self._lost: AgentRLError | None = None
        """What became of a rank other than the first that ended."""

    async def write_lines(self, lines: Sequence[str]) -> None:
        """Send each rank its line."""
        for child, line in zip(self._children, lines, strict=True):
            await child.write_line(line)

    async def read_line(self, timeout_s: float) -> str:
        """Return rank 0's next line.

        Args:
            timeout_s: How long it may say nothing.

        Raises:
            TrainerLostError: A rank ended, and rank 0 did not answer within `GRACE_S`; or it said nothing for `timeout_s`.
        """
        first, *others = self._children
        line: str | None = None
        async with background_tasks() as watching:
            with anyio.CancelScope() as scope:
                for other in others:
                    watching.start_soon(self._watch, other, scope)
                line = await first.read_line(timeout_s)
        if line is None:
            assert self._lost is not None
            raise self._lost
        return line

    async def _watch(self, other: Child, scope: anyio.CancelScope) -> None:
        """Cancel who waits for rank 0, `GRACE_S` after another rank has ended."""
        try:
            while True:
                await other.read_line(math.inf)  # it says nothing
        except AgentRLError as error:
            self._lost = self._lost or error
        await anyio.sleep(GRACE_S)
        scope.cancel()

    def kill(self) -> None:
        """Kill the ranks, if there are several: where one is gone, others may wait for it in a collective."""
        for child in self._children if len(self._children) > 1 else ():
            child.kill()


@asynccontextmanager
async def open_ranks(config: RunConfig, log: Path, weights_dir: Path, open_hosts: Hosts) -> AsyncIterator[TrainerRanks]:
    """Run the ranks of a trainer for the length of the context. Each is told the configuration first, with the model where it is there.

    Args:
        config: The run.
        log: The file of this machine that rank 0 writes to; other ranks have files beside it.
        weights_dir: Where weights are to be on this machine.
        open_hosts: Opens the machine of each rank.

    Raises:
        TrainerLostError: One cannot be started.
        ClusterError: A machine is gone.
    """
    model = await in_thread(Path(config.model.path).absolute)
    async with open_hosts() as hosts:
        meeting = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(await hosts[0].free_port())}
        meeting["WORLD_SIZE"] = str(len(hosts))
        running, children = [AsyncExitStack() for _ in hosts], list[Child]()
        try:
            for rank, (host, stack) in enumerate(zip(hosts, running, strict=True)):
                own = {"RANK": str(rank), "LOCAL_RANK": str(hosts[:rank].count(host))}
                process = host.child_process(
                    "trainer" if len(hosts) == 1 else f"trainer's rank {rank}",
                    [host.python, "-m", "agentrl.trainer", str(host.path_of(weights_dir))],
                    log=log if rank == 0 else log.with_stem(f"{log.stem}-{rank}"),
                    error=TrainerLostError,
                    env={**os.environ, **meeting, **own} if len(hosts) > 1 else None,
                )
                children.append(child := await stack.enter_async_context(process))
                there = config.model.model_copy(update={"path": str(await host.bring(model))})
                await child.write_line(config.model_copy(update={"model": there}).model_dump_json(exclude={"run_dir"}))
            yield TrainerRanks(hosts, children)
        finally:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as closing:
                    for stack in running:
                        closing.start_soon(stack.aclose)


def rank_hosts(config: RunConfig, open_host: OpenHost) -> Hosts | None:
    """Return what opens the nodes of a trainer's ranks, anew whenever the trainer starts; None: they are on this machine.

    Args:
        config: The run.
        open_host: Opens a node for one process.
    """
    if not (config.cluster.address and config.cluster.rank):
        return None

    @asynccontextmanager
    async def hosts() -> AsyncIterator[Sequence[Host]]:
        async with AsyncExitStack() as stack:
            names = (f"trainer's rank {rank}" for rank in range(config.trainer.ranks))
            yield [await stack.enter_async_context(open_host("TrainerRank", name)) for name in names]

    return hosts
