"""Runs programs as this user on this machine, with nothing between them and it. For tests of agentrl on trusted programs only."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentrl.sandboxes.backends.process_link import process_link
from agentrl.sandboxes.backends.start_arguments import init_arguments, sandbox_environment
from agentrl.sandboxes.linked_sandbox import LinkedSandbox
from agentrl.sandboxes.sandbox import Sandbox, SandboxSpec
from agentrl.system.files import scratch_directory


class NoIsolation:
    """The backend that is none. A program can read, change and delete whatever you can, and reach the network."""

    name = "UNSAFE_no_isolation"

    async def prepare(self, spec: SandboxSpec) -> None:
        """Warn that nothing is isolated."""
        warnings.warn("`sandbox.backend` = UNSAFE_no_isolation: programs run as you, without isolation", stacklevel=2)

    @asynccontextmanager
    async def start(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """Yield a first process in a temporary folder."""
        async with scratch_directory("agentrl-sandbox-") as folder:
            work = str(folder)
            command = [sys.executable, *init_arguments(counted=False, folders=[work])]
            env = sandbox_environment(work, os.environ.get("PATH", os.defpath))
            async with (
                process_link(command, env) as link,
                LinkedSandbox(link, spec, env=env, work=work).open() as sandbox,
            ):
                yield sandbox
