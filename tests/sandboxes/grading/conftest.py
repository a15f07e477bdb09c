"""The sandboxes that the tests of a file share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes import BackendName, Limits, SandboxPool, SandboxSpec, open_pool


@pytest.fixture(scope="module")
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=Limits(timeout_s=1)), backend=bubblewrap, size=2) as pool:
        yield pool
