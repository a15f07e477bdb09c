"""The trainer as the main process sees it: commands to the trainer process, one at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.concurrency.child_process import ChildProcess, child_process
from agentrl.errors import TrainerDiskError, TrainerError, TrainerLostError, TrainerStateError
from agentrl.rollout.training_history import TrainedStep


@dataclass(frozen=True)
class Weights:
    """Published weights."""

    version: int
    path: Path
    chain: str
    """The chain of all that they were trained on (`agentrl.rollout.training_history`)."""


class TrainerClient:
    """The commands of `agentrl.trainer.command_loop`. Open it with `open_trainer`."""

    def __init__(self, process: Callable[[], AbstractAsyncContextManager[ChildProcess]], timeout_s: float) -> None:
        self._process = process
        self._timeout_s = timeout_s
        self._running = AsyncExitStack()
        self._unread = 0
        """Answers to come that nobody waits for any more, because whoever asked was cancelled."""
        self.saving = False
        """Whether a checkpoint was being written when the trainer last spoke."""

    async def start(self) -> None:
        """Start the process."""
        self._unread, self.saving = 0, False
        self._child = await self._running.enter_async_context(self._process())

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
        return _weights(await self._ask(op="load", checkpoint=None if checkpoint is None else str(checkpoint)))

    async def step(self, groups: Sequence[int], after: str) -> tuple[Weights, TrainedStep, dict[str, float]]:
        """Train on some groups.

        Args:
            groups: Their ids.
            after: The digest chain that the step follows.

        Returns:
            The new weights, what they were trained on, and the step's metrics.
        """
        reply = await self._ask(op="step", groups=list(groups), after=after)
        self.saving = reply["saving"]
        return _weights(reply), TrainedStep.from_json(reply["trained"]), reply["metrics"]

    async def save(self, directory: Path, step: int, chain: str, since: str) -> None:
        """Begin to write a checkpoint.

        Args:
            directory: Where.
            step: The step that the trainer is at.
            chain: The digest chain after it.
            since: The chain after which its history begins.

        Raises:
            TrainerStateError: The trainer holds anything else.
        """
        await self._ask(op="save", directory=str(directory), step=step, chain=chain, since=since)
        self.saving = True

    async def saved(self) -> None:
        """Wait until the checkpoint is written."""
        await self._ask(op="saved")
        self.saving = False

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

    async def _ask(self, **command: Any) -> dict[str, Any]:
        while self._unread:
            await self._read()
        self._unread += 1  # before it is sent: a cancellation may come when the trainer has it
        await self._child.write_line(json.dumps(command))
        reply: dict[str, Any] = json.loads(await self._read())
        if "error" in reply:
            kind = TrainerStateError if reply["lost"] else TrainerDiskError if reply["disk"] else TrainerError
            raise kind(f"{command['op']} failed in the trainer: {reply['error']}")
        return reply

    async def _read(self) -> str:
        line = await self._child.read_line(self._timeout_s)
        self._unread -= 1
        return line


def _weights(reply: dict[str, Any]) -> Weights:
    return Weights(reply["version"], Path(reply["weights"]), reply["chain"])


@asynccontextmanager
async def open_trainer(
    run_dir: Path,
    weights_dir: Path,
    timeout_s: float,
    lock: int | None,
    ranks: int = 1,
    *,
    config: Path | None = None,
    log: Path | None = None,
) -> AsyncIterator[TrainerClient]:
    """Yield a trainer for the length of the context.

    Args:
        run_dir: The run's directory.
        weights_dir: Where it publishes weights.
        timeout_s: Bound of every answer.
        lock: The descriptor that holds the run's directory, which the trainer holds on to; None: nothing holds it.
        ranks: Processes that it consists of.
        config: The configuration's file; None: the run's.
        log: The file that it writes to; None: the run's.
    """
    elastic = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *elastic, "-m", "agentrl.trainer", str(run_dir), str(weights_dir)]
    command += [str(config)] if config else []
    fds = [] if lock is None else [lock]
    written_to = log or run_dir / "trainer.log"

    def process() -> AbstractAsyncContextManager[ChildProcess]:
        return child_process("trainer", command, log=written_to, error=TrainerLostError, pass_fds=fds)

    client = TrainerClient(process, timeout_s)
    try:
        await client.start()
        yield client
    finally:
        await client.stop()
