"""The sessions that a service keeps: when they end, when it is killed, and when it starts again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import httpx2
import openai
import pytest

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, StoreError
from agentrl.evaluation.directory import Kind, check_no_evaluation, hold_store
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, Proxy, ProxyLimits, open_proxy
from agentrl.proxy.http_messages import Handle
from agentrl.run.open_run import open_run
from agentrl.run.serve import Service
from agentrl.run.session_store import SessionStore
from agentrl.store.database import open_database
from agentrl.store.store import Store
from agentrl.system.tasks import in_thread
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio
CONFIG = RunConfig(model=str(NANO))


class Client:
    """A program that opens sessions and says what they earned."""

    def __init__(self, http: httpx2.AsyncClient, proxy: Proxy, store: Store) -> None:
        self._http = http
        self._proxy = proxy
        self._store = store

    async def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        reply = await self._http.request(method, path, json=body)
        assert reply.status_code == status, reply.text
        return reply.json()

    async def open(self, calls: int = 1, **sampling: Any) -> str:
        """The path of a new session, in which the model was called."""
        opened = await self.ask("POST", "/sessions", sampling)
        async with openai.AsyncOpenAI(base_url=opened["base_url"], api_key=opened["api_key"]) as agent:
            for _ in range(calls):
                await agent.completions.create(model="nano", prompt="1", max_tokens=9)
        return f"/sessions/{opened['id']}"

    async def idle(self) -> str:
        """The path of a session whose time is up."""
        path = await self.open()
        for session in self._proxy.sessions:
            self._proxy.close_session(session)
        assert (await self.ask("GET", path))["status"] == "ended"
        return path

    async def write_protect(self, protected: bool) -> None:
        """Let the store take nothing more, as a full disk does, or again."""
        await in_thread(self._store._db.execute, f"PRAGMA query_only = {int(protected)}")


@asynccontextmanager
async def served(out: Path, chat_format: ChatFormat, *, killed: bool = False, **limits: Any) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        store = await in_thread(stack.enter_context, hold_store(out, "service", {"model": "nano"}, CONFIG))
        kept = await in_thread(SessionStore, store)

        def middleware(proxy: Proxy) -> Handle:
            service = Service(proxy, kept, "admin")
            if not killed:
                stack.push_async_callback(service.keep_all)
            return service.handle

        bounds = ProxyLimits(**limits)
        async with (
            open_proxy(InstantEngine(), chat_format, "nano", limits=bounds, middleware=middleware) as proxy,
            httpx2.AsyncClient(base_url=proxy.url, headers={"Authorization": "Bearer admin"}, trust_env=False) as http,
        ):
            yield Client(http, proxy, store)


async def ends(out: Path) -> list[tuple[str, float, int]]:
    episodes = await in_thread(lambda: open_run(out).episodes())
    return [(episode.reason, episode.reward, episode.tokens) for episode in episodes]


async def test_a_service_that_stops_keeps_open_sessions_and_the_next_one_answers_for_them(
    nano_format: ChatFormat, tmp_path: Path
) -> None:
    async with served(tmp_path / "kept", nano_format) as client:
        rewarded, unrewarded, unused = await client.open(calls=2), await client.open(), await client.open(calls=0)
        await client.ask("POST", f"{rewarded}/reward", {"reward": 0.5})
        record = await client.ask("GET", f"{rewarded}/trajectories")
    assert await ends(tmp_path / "kept") == [("finished", 0.5, 18), ("bad_reward", 0, 9), ("no_model_call", 0, 0)]
    async with served(tmp_path / "kept", nano_format) as client:
        listed = (await client.ask("GET", "/sessions"))["sessions"]
        assert [(f"/sessions/{one['id']}", one["reward"]) for one in listed] == [
            (rewarded, 0.5),
            (unrewarded, None),
            (unused, None),
        ]
        again = await client.ask("GET", f"{rewarded}/trajectories")
        assert again == {**record, "status": "ended"}
        await client.ask("POST", f"{unrewarded}/reward", {"reward": 1}, status=409)
        await client.ask("POST", f"{await client.open()}/close", {"reward": 2})
    assert len(await ends(tmp_path / "kept")) == 4


async def test_a_session_that_was_open_when_its_service_was_killed_is_lost_and_no_other_gets_its_name(
    nano_format: ChatFormat, tmp_path: Path
) -> None:
    async with served(tmp_path / "kept", nano_format, killed=True) as client:
        closed, lost = await client.open(), await client.open()
        await client.ask("POST", f"{closed}/close", {"reward": 1})
    async with served(tmp_path / "kept", nano_format) as client:
        assert (await client.ask("GET", lost))["status"] == "lost"
        assert (await client.ask("GET", f"{lost}/trajectories"))["turns"] == []
        await client.ask("POST", f"{lost}/close", {"reward": 1}, status=409)
        assert await client.open() not in (closed, lost)
        await client.ask("GET", f"{closed[:-16]}{'0' * 16}", status=404)
    assert [reason for reason, *_ in await ends(tmp_path / "kept")] == ["finished", "cancelled", "bad_reward"]


async def test_an_idle_session_waits_for_its_reward_and_the_oldest_of_too_many_is_kept_without(
    nano_format: ChatFormat, tmp_path: Path
) -> None:
    async with served(tmp_path / "kept", nano_format, max_sessions=1) as client:
        first, second = await client.idle(), await client.idle()
        assert (await client.ask("POST", f"{first}/reward", {"reward": 0.25}))["reward"] == 0.25
        third = await client.idle()
        assert (await client.ask("POST", f"{second}/close", {"reward": 1}))["reward"] == 1
        await client.ask("POST", f"{first}/reward", {"reward": 1}, status=409)
        await client.ask("DELETE", third)
    assert await ends(tmp_path / "kept") == [("finished", 0.25, 9), ("finished", 1.0, 9)]


async def test_of_a_session_that_is_deleted_nothing_is_kept(nano_format: ChatFormat, tmp_path: Path) -> None:
    async with served(tmp_path / "kept", nano_format) as client:
        before, after = await client.open(), await client.open()
        await client.ask("DELETE", before)
        await client.ask("POST", f"{after}/close", {"reward": 1})
        await client.ask("DELETE", after)
        for path in (before, after):
            await client.ask("GET", path, status=404)
            await client.ask("POST", f"{path}/close", status=404)
    assert await ends(tmp_path / "kept") == []


async def test_clients_that_close_at_the_same_time_get_one_answer(nano_format: ChatFormat, tmp_path: Path) -> None:
    async with served(tmp_path / "kept", nano_format) as client:
        path, answers = await client.open(), []

        async def close() -> None:
            answers.append(await client.ask("POST", f"{path}/close", {"reward": 1}))

        with closing(await in_thread(open_database, tmp_path / "kept" / "store.sqlite")) as other:
            await in_thread(other.execute, "BEGIN IMMEDIATE")  # the first of them waits for it to end
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(close)
                for _ in range(8):
                    assert (await client.ask("GET", path))["reward"] in (None, 1)
                await in_thread(other.execute, "COMMIT")
        assert answers == [answers[0]] * 8
    assert await ends(tmp_path / "kept") == [("finished", 1.0, 9)]


async def test_what_a_full_disk_does_not_take_waits_for_room_and_a_session_that_was_not_opened_counts_for_nothing(
    nano_format: ChatFormat, tmp_path: Path
) -> None:
    async with served(tmp_path / "kept", nano_format, max_sessions=2) as client:
        path = await client.open()
        await client.write_protect(True)
        for _ in range(3):
            await client.ask("POST", "/sessions", status=507)
        refused = await client.ask("POST", f"{path}/close", {"reward": 1}, status=507)
        assert "ask again when there is room" in refused["error"]["message"]
        await client.write_protect(False)
        await client.ask("POST", f"{path}/close", {"reward": 1})
        await client.open(), await client.open()
    assert len(await ends(tmp_path / "kept")) == 3


async def test_a_session_that_is_closed_after_its_directory_was_removed_is_not_said_to_be_kept(
    nano_format: ChatFormat, tmp_path: Path
) -> None:
    async with served(tmp_path / "kept", nano_format) as client:
        path = await client.open()
        await in_thread((tmp_path / "kept").rename, tmp_path / "moved")
        refused = await client.ask("POST", f"{path}/close", {"reward": 1}, status=507)
        assert "was taken away or replaced" in refused["error"]["message"]
        await in_thread((tmp_path / "moved").rename, tmp_path / "kept")
    assert await ends(tmp_path / "kept") == [("finished", 1.0, 9)]


async def test_no_reply_is_longer_than_its_session_allows(nano_format: ChatFormat, tmp_path: Path) -> None:
    async with served(tmp_path / "kept", nano_format) as client:
        turns = (await client.ask("GET", f"{await client.open(max_tokens=3)}/trajectories"))["turns"]
        assert [len(turn["output_ids"]) for turn in turns] == [3]


async def test_the_directory_of_a_service_is_that_of_nothing_else(nano_format: ChatFormat, tmp_path: Path) -> None:
    def opened(kind: Kind, model: str) -> None:
        with hold_store(tmp_path / "kept", kind, {"model": model}, CONFIG):
            pass

    async with served(tmp_path / "kept", nano_format):
        with pytest.raises(ConfigError, match=r"another service goes on in `out` .*, which is in use by process"):
            await in_thread(opened, "service", "nano")
    others: tuple[tuple[Kind, str], ...] = (("service", "another"), ("evaluation", "nano"))
    for other in others:
        with pytest.raises(ConfigError, match="holds something else"):
            await in_thread(opened, *other)
    with pytest.raises(StoreError, match=r"is of a service, which is neither trained in.*`agentrl serve --out`"):
        await in_thread(check_no_evaluation, tmp_path / "kept")


async def test_a_session_beyond_the_limit_is_refused_for_a_moment(nano_format: ChatFormat, tmp_path: Path) -> None:
    async with served(tmp_path / "kept", nano_format, max_sessions=1) as client:
        opened, refused = [await client._http.post("/sessions", json={}) for _ in range(2)]
    assert (opened.status_code, refused.status_code, refused.headers["retry-after"]) == (200, 429, "1")
    assert refused.json()["error"]["code"] == "too_many_sessions"
