"""A machine that shares no directory with this one: its processes see neither the run nor what other machines keep.

the run's directory, other machines' roots     hidden from its processes by bubblewrap: empty there
root/                                          its disk: what was brought, and what its processes write
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from anyio.to_thread import run_sync as in_thread

from agentrl.errors import AgentRLError, NodeLostError
from agentrl.system.child_process import Child
from agentrl.system.host import Host


class OtherMachine(Host):
    """A host with a disk of its own. `hidden`: the directories of this machine and of others that its processes do not have."""

    def __init__(self, name: str, root: Path, hidden: Sequence[Path]) -> None:
        super().__init__()
        self.name, self.root = name, root
        self.scratch = root / "scratch"
        self._hidden = hidden
        self.children: list[Child] = []
        self.gone = False
        """Whether the machine is lost, with all that it does."""
        self.on_fetch: Callable[[Path], None] = lambda arrived: None
        """What happens to a directory that was fetched."""

    @asynccontextmanager
    async def child_process(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        error: type[AgentRLError],
        env: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Child]:
        """Run a command where the other directories are hidden."""
        self._check()
        hidden = [word for path in self._hidden for word in ("--tmpfs", str(path))]
        inside = ["bwrap", "--dev-bind", "/", "/", *hidden, "--die-with-parent", "--chdir", str(self.root), *command]
        async with super().child_process(name, inside, log=log, error=error, env=env) as child:
            self.children.append(child)
            yield child

    async def bring(self, directory: Path) -> Path:
        self._check()
        there = self.root / "brought" / directory.name
        await in_thread(lambda: shutil.copytree(directory, there, dirs_exist_ok=True))
        return there

    async def fetch(self, directory: Path, to: Path, *, for_servers: bool = False) -> None:
        self._check()
        await in_thread(shutil.copytree, directory, to)
        await in_thread(self.on_fetch, to)
        self._check()

    async def remove(self, directory: Path) -> None:
        self._check()
        assert directory.is_relative_to(self.root)
        await in_thread(shutil.rmtree, directory)

    def lose(self) -> None:
        """Lose the machine: its processes are killed, and nothing is reached there any more."""
        self.gone = True
        for child in self.children:
            child.kill()

    def _check(self) -> None:
        if self.gone:
            raise NodeLostError(f"{self.name} cannot be reached")
