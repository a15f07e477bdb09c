"""A few seconds of `benchmarks/fuzz_proxy.py`: whatever comes in, no reply says that the proxy failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.proxy import ChatFormat, Proxy, open_proxy
from agentrl.proxy.http_messages import Handle
from agentrl.run.serve import Service
from agentrl.run.session_store import SessionStore
from agentrl.store.store import Store
from benchmarks.fuzz_proxy import ADMIN_KEY, fuzz_bytes
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[SessionStore]:
    with Store(tmp_path / "store.sqlite") as store:
        yield SessionStore(store)


@pytest.mark.soak
async def test_no_damaged_request_is_a_failure_of_the_proxy(nano_format: ChatFormat, kept: SessionStore) -> None:
    def middleware(proxy: Proxy) -> Handle:
        return Service(proxy, engine, kept, ADMIN_KEY).handle

    engine = InstantEngine()
    async with open_proxy(engine, nano_format, "nano", middleware=middleware) as proxy:
        statuses, failed = await fuzz_bytes(proxy.url, 4, seed=1, at_once=4)
    assert not failed, statuses
    assert any(status.startswith("2") for status in statuses)
    assert any(status.startswith("4") for status in statuses)
