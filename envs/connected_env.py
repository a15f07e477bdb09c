"""`ConnectedEnv`: a tool environment whose tools another program offers, over a connection of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from agentrl.envs.tool_env import ToolEnv
from agentrl.envs.tools import Tool
from agentrl.errors import EpisodeError, ToolCallError
from agentrl.system.tasks import Lease


class ConnectedEnv(ToolEnv):
    """Base class of environments that talk to a server: they connect in the first reset, and disconnect when they are closed."""

    refusals = (ToolCallError,)
    toolset: Sequence[Tool] = ()
    _lease: Lease[Any] | None = None

    @abstractmethod
    def connect(self) -> AbstractAsyncContextManager[Any]:
        """Return a connection, to be opened."""

    async def connection(self) -> Any:
        """Return the open connection.

        Raises:
            EpisodeError: It is in no episode, which would keep it open.
        """
        if self.resources is None:
            raise EpisodeError(f"{type(self).__name__} lives in an episode; make it with episode.env(...)")
        if self._lease is None:
            self._lease = await self.resources.hold(self.connect)
        return self._lease.value

    async def aclose(self) -> None:
        """Disconnect, and end a server that was started."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.release()
