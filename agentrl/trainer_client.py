"""The trainer as the main process sees it: commands to the trainer process, one at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.child_process import ChildProcess, child_process
from agentrl.errors import TrainerError, TrainerLostError


@dataclass(frozen=True)
class Weights:
    """Published weights."""

    version: int
    path: Path


class TrainerClient:
    """The commands of `agentrl.trainer.__main__`. Open it with `open_trainer`."""

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
        self._unread = 0
        self._child = await self._running.enter_async_context(self._process())

    async def stop(self) -> None:
        """End the process."""
        running, self._running = self._running, AsyncExitStack()
        await running.aclose()

    async def start_again(self) -> None:
        """A new process in place of one that was lost. It knows nothing: `load` comes next."""
        await self.stop()
        await self.start()

    async def load(self, checkpoint: Path | None) -> Weights:
        """Start from a checkpoint, or from the model as it is."""
        reply = await self._ask(op="load", checkpoint=None if checkpoint is None else str(checkpoint))
        return Weights(reply["version"], Path(reply["weights"]))

    async def step(self, groups: Sequence[int]) -> tuple[Weights, dict[str, float]]:
        """Train on some groups; the new weights and the step's metrics."""
        reply = await self._ask(op="step", groups=list(groups))
        self.saving = reply["saving"]
        return Weights(reply["version"], Path(reply["weights"])), reply["metrics"]

    async def save(self, directory: Path) -> None:
        """Begin to write a checkpoint of what the trainer holds now."""
        await self._ask(op="save", directory=str(directory))
        self.saving = True

    async def saved(self) -> None:
        """Wait until the checkpoint is written."""
        await self._ask(op="saved")
        self.saving = False

    async def join_weight_group(
        self, address: str, port: int, world_size: int, name: str, backend: str, timeout_s: float
    ) -> None:
        """Join the process group over which weights go to the servers."""
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
        await self._child.write_line(json.dumps(command))
        self._unread += 1
        reply: dict[str, Any] = json.loads(await self._read())
        if "error" in reply:
            raise TrainerError(f"{command['op']} failed in the trainer: {reply['error']}")
        return reply

    async def _read(self) -> str:
        line = await self._child.read_line(self._timeout_s)
        self._unread -= 1
        return line


@asynccontextmanager
async def open_trainer(
    run_dir: Path, weights_dir: Path, timeout_s: float, lock: int, ranks: int = 1
) -> AsyncIterator[TrainerClient]:
    """A trainer of so many ranks for the run in `run_dir`, for the length of the context. It holds on to the run's `lock`."""
    elastic = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *elastic, "-m", "agentrl.trainer", str(run_dir), str(weights_dir)]

    def process() -> AbstractAsyncContextManager[ChildProcess]:
        return child_process("trainer", command, log=run_dir / "trainer.log", error=TrainerLostError, pass_fds=[lock])

    client = TrainerClient(process, timeout_s)
    try:
        await client.start()
        yield client
    finally:
        await client.stop()
