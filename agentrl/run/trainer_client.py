"""The trainer as the main process sees it: commands to the trainer process, one at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from agentrl.config import RunConfig
from agentrl.config.trainer import PUBLISHED_VERSIONS_KEPT
from agentrl.errors import AgentRLError, TrainerDiskError, TrainerError, TrainerLostError, TrainerStateError
from agentrl.run.trainer_ranks import Hosts, TrainerRanks, lost_with_machine, open_ranks
from agentrl.store.batches import BATCH_FILE, TrainedStep, write_batch
from agentrl.store.manifest import check_files
from agentrl.store.token_figures import read_figures
from agentrl.system.files import make_directory, partial_path, scratch_directory, sync, sync_tree
from agentrl.system.host import Host
from agentrl.system.tasks import in_thread

WORK = "trainer"
"""The folder of a run's directory for the files that the ranks are to read."""


@dataclass(frozen=True)
class Weights:
    """Published weights."""

    version: int
    path: Path


@dataclass(eq=False)
class TrainerClient:
    """The commands of `agentrl.trainer.command_loop`. Open it with `open_trainer`."""

    ranks: Callable[[], AbstractAsyncContextManager[TrainerRanks]]
    """Starts its processes."""
    timeout_s: float
    """Bound of every answer."""
    run_dir: Path
    weights_dir: Path
    """One for the weights, where rank 0 is elsewhere."""
    saving: bool = field(default=False, init=False)
    """Whether a checkpoint was being written when the trainer last spoke."""
    _writing: Path | None = field(default=None, init=False)
    """Where the checkpoint is to be that these processes began to write, and that is not here."""
    _running: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)
    _started: TrainerRanks = field(init=False)
    _unread: int = field(default=0, init=False)
    """Answers to come that nobody waits for any more, because whoever asked was cancelled."""

    async def start(self) -> None:
        """Start the processes, in place of those that were lost. They know nothing: `load` comes next.

        Raises:
            TrainerLostError: One cannot be started, or there is no machine for it.
        """
        await self.stop()
        self._unread, self.saving, self._writing = 0, False, None
        await in_thread(make_directory, self.run_dir / WORK, 0o700)
        with lost_with_machine():
            self._started = await self._running.enter_async_context(self.ranks())

    async def stop(self) -> None:
        """End the processes."""
        running, self._running = self._running, AsyncExitStack()
        await running.aclose()

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
        # Each batch has a directory of its own, so that none is taken for another.
        async with scratch_directory("batch-", within=self.run_dir / WORK) as directory:
            await in_thread(write_batch, self.run_dir / "store.sqlite", groups, directory)
            async with self._brought(directory, self._started.hosts) as there:
                own = [{"episodes": str(path / BATCH_FILE)} for path in there]
                reply = await self._ask(op="step", own=own, groups=list(groups), after=after)
        self.saving = reply["saving"]
        weights, trained = await self._weights(reply), TrainedStep.from_json(reply["trained"])
        return weights, replace(trained, figures=await in_thread(read_figures, weights.path)), reply["metrics"]

    async def save(self, directory: Path, step: int) -> None:
        """Begin to write a checkpoint.

        Args:
            directory: Where.
            step: The step that the trainer is at.

        Raises:
            TrainerStateError: The trainer holds anything else.
        """
        await self._ask(op="save", directory=str(self._started.hosts[0].path_of(directory)), step=step)
        self.saving, self._writing = True, directory

    async def saved(self) -> None:
        """Wait until the checkpoint is written, and is here: all of its files as they were written.

        Raises:
            TrainerLostError: Rank 0's machine is gone, or what arrived from there is damaged.
        """
        await self._ask(op="saved")
        if self._writing is not None:
            await self._fetch(self._writing, weights=False)
        self.saving, self._writing = False, None

    async def _fetch(self, directory: Path, *, weights: bool) -> None:
        """Have here, in place of one of before, a directory that rank 0 wrote: weights, which the servers will read, or a checkpoint.

        Raises:
            TrainerLostError: The machine is gone, or the checkpoint is damaged.
        """
        host, arriving = self._started.hosts[0], partial_path(directory)
        if (there := host.path_of(directory)) == directory:
            return

        def put_in_place() -> None:
            if not weights:
                check_files(arriving)
                sync_tree(arriving)
            shutil.rmtree(directory, ignore_errors=True)
            arriving.rename(directory)
            sync(directory.parent)

        await in_thread(make_directory, directory.parent)
        await in_thread(lambda: shutil.rmtree(arriving, ignore_errors=True))
        with lost_with_machine():
            await host.fetch(there, arriving, for_servers=weights)
            await in_thread(put_in_place)
            if not weights:
                await host.remove(there)

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
                    with lost_with_machine():
                        paths[host] = await host.bring(directory)
            yield [paths[host] for host in hosts]
        finally:
            with anyio.CancelScope(shield=True):
                for host, path in paths.items():
                    with suppress(AgentRLError):  # a machine that is gone keeps nothing
                        await host.remove(path)

    async def join_weight_group(self, *where: Any) -> None:
        """Join the process group over which weights go to the servers. `where`: what `agentrl.trainer.weight_sender.WeightGroup` takes."""
        await self._ask(op="join_weight_group", where=where)

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
        directory = self.weights_dir / Path(reply["weights"]).name
        await self._fetch(directory, weights=True)
        await in_thread(_remove_old_weights, self.weights_dir)
        return Weights(reply["version"], directory)

    async def _read(self) -> str:
        line = await self._started.read_line(self.timeout_s)
        self._unread -= 1
        return line


def _remove_old_weights(weights_dir: Path) -> None:
    for old in sorted(weights_dir.glob("v*"), key=lambda path: path.stat().st_mtime)[:-PUBLISHED_VERSIONS_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


@asynccontextmanager
async def open_trainer(
    run_dir: Path, config: RunConfig, weights_dir: Path, *, lock: int | None = None, hosts: Hosts | None = None
) -> AsyncIterator[TrainerClient]:
    """Yield a trainer for the length of the context.

    Args:
        run_dir: The run's directory, with its store. Rank 0 writes to `trainer.log` in it, other ranks to files beside that.
        config: The configuration. Its ranks are as many as are started.
        weights_dir: Where the trainer publishes weights, or where they are brought if rank 0 is on another machine.
        lock: The descriptor that holds the run's directory, which the ranks on this machine hold on to; None: nothing holds it.
        hosts: The machine of each rank, asked for whenever the trainer starts; this one by default.
    """
    here, remove_work = Host(), lambda: shutil.rmtree(run_dir / WORK, ignore_errors=True)
    here.pass_fds = () if lock is None else (lock,)
    machines = hosts or (lambda: nullcontext([here] * config.trainer.ranks))
    ranks = partial(open_ranks, config, run_dir / "trainer.log", weights_dir, machines)
    client = TrainerClient(ranks, config.trainer.step_timeout_s, run_dir, weights_dir)
    try:
        await in_thread(remove_work)
        await client.start()
        yield client
    finally:
        await client.stop()
        with anyio.CancelScope(shield=True):
            await in_thread(remove_work)
