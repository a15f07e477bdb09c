"""Weights that a trainer published on another machine, brought here: from here they go to the engine's servers as if published here."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio

from agentrl.concurrency.host import Host
from agentrl.concurrency.threads import in_thread
from agentrl.machine.whole import partial_path

VERSIONS_KEPT = 8
"""A server that is started again loads the newest; one that loads an older one still has it."""


class FetchedWeights:
    """The newest versions of the weights of a run, here. `directory`: where, each in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept: list[Path] = []

    async def fetch(self, host: Host, there: Path) -> Path:
        """Bring weights from a host; return where they are here.

        Args:
            host: The host, which may be this machine: then they stay where they are.
            there: Their directory on the host, whose name is that of the version.

        Raises:
            ClusterError: The host is gone.
        """
        if host.scratch is None:
            return there
        here = self._directory / there.name
        partial = partial_path(here)
        try:
            await in_thread(lambda: shutil.rmtree(partial, ignore_errors=True))
            await host.fetch(there, partial, for_servers=True)
            await in_thread(_put_in_place, partial, here)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await in_thread(lambda: shutil.rmtree(partial, ignore_errors=True))
            raise
        self._kept = [*(path for path in self._kept if path != here), here]
        while len(self._kept) > VERSIONS_KEPT:
            old = self._kept.pop(0)
            await in_thread(lambda path: shutil.rmtree(path, ignore_errors=True), old)
        return here


def _put_in_place(partial: Path, directory: Path) -> None:
    """Give weights their name; those of a step that was taken again replace the ones before."""
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)
