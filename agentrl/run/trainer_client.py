"""The trainer as the main process sees it: commands to the trainer process, one at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from agentrl.config import RunConfig
from agentrl.errors import (
    AgentRLError,
    CheckpointError,
    TrainerDiskError,
    TrainerError,
    TrainerLostError,
    TrainerStateError,
)
from agentrl.run.run_directory import config_text
from agentrl.run.trainer_ranks import RankStart, TrainerRanks, open_ranks
from agentrl.store.batch_file import BATCH_FILE, write_batch
from agentrl.store.batches import TrainedStep
from agentrl.store.manifest import check_files
from agentrl.system.files import make_directory, partial_path, sync, sync_tree, write_whole
from agentrl.system.host import Host, ThisMachine
from agentrl.system.tasks import in_thread

Hosts = Callable[[], AbstractAsyncContextManager[Sequence[Host]]]
"""Opens the machines of the ranks, each as often as it has some, for the length of a context."""
VERSIONS_KEPT = 8
"""Versions of the weights of a trainer on another machine. A server that is started again loads the newest."""
FETCH_TRIES = 3
"""How often a checkpoint is fetched that arrives damaged."""


@dataclass(frozen=True)
class Weights:
    """Published weights."""

    version: int
    path: Path


class TrainerClient:
    """The commands of `agentrl.trainer.command_loop`. Open it with `open_trainer`."""

    def __init__(
        self,
        ranks: Callable[[], AbstractAsyncContextManager[TrainerRanks]],
        timeout_s: float,
        store: Path,
        work_dir: Path,
        weights_dir: Path,
    ) -> None:
        """Keep what the trainer is started with.

        Args:
            ranks: Starts its processes.
            timeout_s: Bound of every answer.
            store: The file of the run's store.
            work_dir: A directory of this machine for the files that the ranks are to read.
            weights_dir: One for the weights, where rank 0 is elsewhere.
        """
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._store = store
        self._work_dir = work_dir
        self._weights_dir = weights_dir
        self._fetched: list[Path] = []
        """Versions of the weights that were fetched, and are kept."""
        self._running = AsyncExitStack()
        self._unread = 0
        """Answers to come that nobody waits for any more, because whoever asked was cancelled."""
        self._batches = 0
        """How many batches were written for the ranks: each has a directory of its own, so that none is taken for another."""
        self._written: tuple[Path, Path] | None = None
        """Where the checkpoint that is being written lies on rank 0's machine, and where it is to be here; None: there already."""
        self.saving = False
        """Whether a checkpoint was being written when the trainer last spoke."""

    async def start(self) -> None:
        """Start the process."""
        self._unread, self.saving, self._written = 0, False, None
        self._started = await self._running.enter_async_context(self._ranks())

    async def stop(self) -> None:
        """End the process."""
        running, self._running = self._running, AsyncExitStack()
        await running.aclose()

    async def restart(self) -> None:
        """Start a new process in place of one that was lost. It knows nothing: `load` comes next."""
        await self.stop()
        await self.start()

    async def load(self, checkpoint: Path | None) -> Weights:
        """Start from a checkpoint, or from the model as it is."""
        if checkpoint is None:
            return await self._weights(await self._ask(op="load", checkpoint=None))
        async with self._brought(checkpoint, self._started.hosts[:1]) as (there,):
            return await self._weights(await self._ask(op="load", checkpoint=str(there)))

    async def step(self, groups: Sequence[int], after: int) -> tuple[Weights, TrainedStep, dict[str, float]]:
        """Train on some groups.

        Args:
            groups: Their ids.
            after: The step that the trainer is at.

        Returns:
            The new weights, what they were trained on, and the step's metrics.
        """
        self._batches += 1
        directory = self._work_dir / f"batch-{self._batches}"
        try:
            await in_thread(write_batch, self._store, groups, directory)
            async with self._brought(directory, self._started.hosts) as there:
                own = [{"episodes": str(path / BATCH_FILE)} for path in there]
                reply = await self._ask(op="step", own=own, groups=list(groups), after=after)
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(lambda: shutil.rmtree(directory, ignore_errors=True))
        self.saving = reply["saving"]
        return await self._weights(reply), TrainedStep.from_json(reply["trained"]), reply["metrics"]

    async def save(self, directory: Path, step: int) -> None:
        """Begin to write a checkpoint.

        Args:
            directory: Where.
            step: The step that the trainer is at.

        Raises:
            TrainerStateError: The trainer holds anything else.
        """
        scratch = self._started.hosts[0].scratch
        there = directory if scratch is None else scratch / "checkpoints" / directory.name
        await self._ask(op="save", directory=str(there), step=step)
        self.saving, self._written = True, None if scratch is None else (there, directory)

    async def saved(self) -> None:
        """Wait until the checkpoint is written, and is here.

        Raises:
            TrainerError: What arrived here is not what was written, however often it was fetched.
            TrainerLostError: Rank 0's machine is gone.
        """
        await self._ask(op="saved")
        if self._written is not None:
            await self._fetch_checkpoint(*self._written)
            self._written = None
        self.saving = False

    async def _fetch_checkpoint(self, there: Path, directory: Path) -> None:
        """Bring a checkpoint from rank 0's machine to where it belongs: it is there when all of its files are what was written.

        What arrives damaged is fetched again.

        Raises:
            TrainerError: It is damaged every time.
            TrainerLostError: The machine is gone.
        """
        host = self._started.hosts[0]
        await in_thread(make_directory, directory.parent)
        for tries_left in reversed(range(FETCH_TRIES)):
            partial = await self._fetch(there, directory)
            try:
                await in_thread(check_files, partial)
                break
            except CheckpointError as damaged:
                if not tries_left:
                    raise TrainerError(f"what was fetched from {host.name} is damaged: {damaged}") from damaged
        await in_thread(sync_tree, partial)
        await in_thread(_put_in_place, partial, directory)
        await in_thread(sync, directory.parent)
        with _of_host(host):
            await host.remove(there)

    async def _fetch(self, there: Path, directory: Path, *, for_servers: bool = False) -> Path:
        """Copy a directory from rank 0's machine; return where it is until `_put_in_place` gives it its name.

        Raises:
            TrainerLostError: The machine is gone.
        """
        host, partial = self._started.hosts[0], partial_path(directory)
        await in_thread(lambda: shutil.rmtree(partial, ignore_errors=True))
        with _of_host(host):
            await host.fetch(there, partial, for_servers=for_servers)
        return partial

    @asynccontextmanager
    async def _brought(self, directory: Path, hosts: Sequence[Host]) -> AsyncIterator[list[Path]]:
        """Have a directory on some hosts for the length of the context.

        Args:
            directory: The directory, on this machine.
            hosts: The hosts; one may be there several times.

        Yields:
            [host] where it is there.

        Raises:
            TrainerLostError: A host does not take it.
        """
        paths: dict[Host, Path] = {}
        try:
            for host in hosts:
                if host not in paths:
                    with _of_host(host):
                        paths[host] = await host.bring(directory)
            yield [paths[host] for host in hosts]
        finally:
            with anyio.CancelScope(shield=True):
                for host, path in paths.items():
                    with suppress(AgentRLError):  # a machine that is gone keeps nothing
                        await host.remove(path)

    async def join_weight_group(
        self, address: str, port: int, world_size: int, name: str, backend: str, timeout_s: float
    ) -> None:
        """Join the process group over which weights go to the servers.

        Args:
            address: Of its rendezvous, where this process is rank 0.
            port: The same.
            world_size: Processes of the group, the trainer's included.
            name: Of the group, as the servers know it.
            backend: "nccl" or "gloo".
            timeout_s: Bound of the rendezvous.
        """
        await self._ask(
            op="join_weight_group",
            address=address,
            port=port,
            world_size=world_size,
            name=name,
            backend=backend,
            timeout_s=timeout_s,
        )

    async def weight_buckets(self) -> list[dict[str, Any]]:
        """Make the buckets of the current weights ready to send; what each holds."""
        buckets: list[dict[str, Any]] = (await self._ask(op="weight_buckets"))["buckets"]
        return buckets

    async def send_bucket(self, index: int) -> None:
        """Broadcast one bucket."""
        await self._ask(op="send_bucket", index=index)

    async def _ask(self, own: Sequence[dict[str, Any]] | None = None, **command: Any) -> dict[str, Any]:
        """Return rank 0's answer to a command. `own`: what each rank is told beside it.

        Raises:
            TrainerLostError: A rank is gone; the others are killed.
            TrainerError: The command failed.
        """
        lines = [json.dumps(command | one) for one in own or [{}] * len(self._started.hosts)]
        try:
            while self._unread:
                await self._read()
            self._unread += 1  # before it is sent: a cancellation may come when the trainer has it
            await self._started.write_lines(lines)
            reply: dict[str, Any] = json.loads(await self._read())
            if reply.get("lost") and (gone := await self._started.lost()):
                raise gone  # which is what rank 0 complains of
        except TrainerLostError:
            self._started.kill()
            raise
        if "error" in reply:
            kind = TrainerStateError if reply["lost"] else TrainerDiskError if reply["disk"] else TrainerError
            raise kind(f"{command['op']} failed in the trainer: {reply['error']}")
        return reply

    async def _weights(self, reply: dict[str, Any]) -> Weights:
        """Return the weights that an answer names, once they are on this machine.

        Raises:
            TrainerLostError: Rank 0's machine is gone.
        """
        version, there = reply["version"], Path(reply["weights"])
        if self._started.hosts[0].scratch is None:
            return Weights(version, there)
        here = self._weights_dir / there.name
        await in_thread(_put_in_place, await self._fetch(there, here, for_servers=True), here)
        self._fetched = [*(path for path in self._fetched if path != here), here]
        while len(self._fetched) > VERSIONS_KEPT:
            await in_thread(lambda: shutil.rmtree(self._fetched.pop(0), ignore_errors=True))
        return Weights(version, here)

    async def _read(self) -> str:
        line = await self._started.read_line(self._timeout_s)
        self._unread -= 1
        return line


@contextmanager
def _of_host(host: Host) -> Iterator[None]:
    """Say of an error of a host that the trainer is lost with it: it is started again, where there are hosts.

    Raises:
        TrainerLostError: Any error of agentrl within the context.
    """
    try:
        yield
    except AgentRLError as error:
        raise TrainerLostError(f"the trainer's machine {host.name} failed: {error}") from error


def _put_in_place(partial: Path, directory: Path) -> None:
    """Give a directory that is whole its name, in place of one of before: of weights, when a step was taken again."""
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)


@asynccontextmanager
async def open_trainer(
    store: Path,
    config: RunConfig,
    weights_dir: Path,
    work_dir: Path,
    *,
    log: Path,
    lock: int | None = None,
    hosts: Hosts | None = None,
) -> AsyncIterator[TrainerClient]:
    """Yield a trainer for the length of the context.

    Args:
        store: The file of the run's store.
        config: The configuration. Its ranks are as many as are started.
        weights_dir: Where the trainer publishes weights, or where they are brought if rank 0 is on another machine.
        work_dir: A directory of this machine for the files that the ranks are to read; emptied first, deleted in the end.
        log: The file that rank 0 writes to; other ranks have files beside it.
        lock: The descriptor that holds the run's directory, which the ranks on this machine hold on to; None: nothing holds it.
        hosts: The machine of each rank, asked for whenever the trainer starts; this one by default.
    """
    here: Host = ThisMachine(() if lock is None else (lock,))
    open_hosts = hosts or (lambda: nullcontext([here] * config.trainer.ranks))
    await in_thread(lambda: shutil.rmtree(work_dir, ignore_errors=True))

    @asynccontextmanager
    async def ranks() -> AsyncIterator[TrainerRanks]:
        async with open_hosts() as machines:
            configs = {
                host: await _configuration(host, config, work_dir / f"config-{number}")
                for number, host in enumerate(dict.fromkeys(machines))
            }
            starts = [
                RankStart(
                    host,
                    configs[host],
                    weights_dir if host.scratch is None else host.scratch / "weights",
                    log if rank == 0 else log.with_stem(f"{log.stem}-{rank}"),
                )
                for rank, host in enumerate(machines)
            ]
            async with open_ranks(starts) as started:
                yield started

    client = TrainerClient(ranks, config.trainer.step_timeout_s, store, work_dir, weights_dir)
    try:
        await client.start()
        yield client
    finally:
        await client.stop()
        with anyio.CancelScope(shield=True):
            await in_thread(lambda: shutil.rmtree(work_dir, ignore_errors=True))


async def _configuration(host: Host, config: RunConfig, directory: Path) -> Path:
    """Return where the configuration is on a host, which has the model by then."""
    with _of_host(host):
        model = await host.bring(await in_thread(Path(config.model.path).absolute))
    own = config.model_copy(update={"model": config.model.model_copy(update={"path": str(model)})})

    def write() -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(directory / "config.json", config_text(own))

    await in_thread(write)
    with _of_host(host):
        return await host.bring(directory) / "config.json"
