"""Sessions: found by their keys and roles, limited in number and in work, closed when idle."""

from __future__ import annotations

import json

import anyio
import pytest

from agentrl.errors import TooManySessionsError
from agentrl.proxy import ChatFormat
from tests.components import wait_until
from tests.proxy.test_limits import CHAT, opened

pytestmark = pytest.mark.anyio


async def test_sessions_are_bounded_and_a_closed_one_makes_room(nano_format: ChatFormat) -> None:
    async with opened(nano_format, max_sessions=2) as (_, proxy):
        first, _ = proxy.open_session(), proxy.open_session()
        with pytest.raises(TooManySessionsError, match="2 sessions are open, as many as there may be"):
            proxy.open_session()
        proxy.close_session(first)
        proxy.open_session()


@pytest.mark.soak
async def test_idle_sessions_are_closed_and_busy_ones_are_not(nano_format: ChatFormat) -> None:
    async with opened(nano_format, session_idle_timeout_s=0.3) as (engine, proxy):
        idle, busy = proxy.open_session(), proxy.open_session()
        await engine.pause("in_place")
        async with anyio.create_task_group() as group:
            headers = {"authorization": f"Bearer {busy.key}"}
            body = json.dumps(CHAT).encode()
            group.start_soon(proxy.handle, "POST", "/v1/chat/completions", headers, body)
            await wait_until(lambda: idle.closed, 40)
            await anyio.sleep(0.5)
            assert not busy.closed
            await engine.resume()
        assert busy.record.turns
        await wait_until(lambda: busy.closed, 40)
        assert len(proxy.sessions) == 0


async def test_keys_are_told_apart_to_the_last_character(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (_, proxy):
        key = proxy.open_session().key
        for name, wrong in (("authorization", f"Bearer {key[:-1]}"), ("x-api-key", key + "x"), ("authorization", "")):
            assert (await proxy.handle("GET", "/v1/models", {name: wrong}, b"")).status == 401
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
            assert (await proxy.handle("GET", "/v1/models", headers, b"")).status == 200


async def test_roles_are_words(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (_, proxy):
        key = proxy.open_session().key

        async def status(name: str) -> int:
            headers = {"authorization": f"Bearer {key}.{name}"}
            return (await proxy.handle("GET", "/v1/models", headers, b"")).status

        assert [await status(name) for name in ("a", "b-1", "a")] == [200, 200, 200]
        assert [await status(name) for name in ("x" * 65, "a b", "1", "\udcff")] == [400] * 4
