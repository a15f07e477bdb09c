"""What no client got is not in the record: choices of a call that failed, calls that were given up, streams left in the middle."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import openai
import pytest

from agentrl.errors import EngineError
from agentrl.proxy import ChatFormat, Proxy, Session, open_proxy
from agentrl.proxy.http_messages import InProcessTransport
from agentrl.record.recorded_choice import CallLog, RecordedChoice
from agentrl.record.tokens import Generation
from tests.components import wait_until
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio
USER: Any = [{"role": "user", "content": "1 2 3"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": ["1 2", "3 4"]},
    "/v1/responses": {"input": "1 2 3"},
    "/v1/messages": {"messages": USER, "max_tokens": 16},
}
ENDS = ('"finish_reason":"stop"', '"message_delta"', '"response.completed"')


class Failing(InstantEngine):
    """Its `failing`-th call fails, after the others have ended."""

    def __init__(self, failing: int) -> None:
        super().__init__()
        self._failing = failing

    async def generate(self, *args: Any, **options: Any) -> Generation:
        number = len(self.order)
        reply = await super().generate(*args, **options)
        if number == self._failing:
            await anyio.sleep(0.05)
            raise EngineError("no reply")
        return reply


class Kept(CallLog):
    """A call log that takes a while to keep a reply."""

    async def commit(self, choice: RecordedChoice) -> None:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()


class Held(Kept):
    """A call log that keeps no reply before it `may`."""

    def __init__(self) -> None:
        super().__init__([])
        self.begun, self.may = anyio.Event(), anyio.Event()

    async def commit(self, choice: RecordedChoice) -> None:
        self.begun.set()
        await self.may.wait()


@asynccontextmanager
async def opened(chat_format: ChatFormat, engine: InstantEngine | None = None) -> AsyncIterator[Proxy]:
    async with open_proxy(engine or InstantEngine(), chat_format, "nano") as proxy:
        yield proxy


async def ask(proxy: Proxy, session: Session, path: str, **options: Any) -> Any:
    body = json.dumps({"model": "nano", **BODIES[path], **options}).encode()
    return await proxy.handle("POST", path, {"x-api-key": session.key}, body)


@pytest.mark.parametrize("failing", range(3))
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "options"),
    [("/v1/chat/completions", {"n": 3}), ("/v1/completions", {"prompt": ["1", "2", "3"]})],
)
async def test_a_call_of_which_one_choice_fails_leaves_nothing(
    nano_format: ChatFormat, path: str, options: dict[str, Any], stream: bool, failing: int
) -> None:
    async with opened(nano_format, Failing(failing)) as proxy:
        session = proxy.open_session()
        reply = await ask(proxy, session, path, stream=stream, **options)
        if stream:
            assert "no reply" in "".join([event.decode() async for event in reply.events])
        else:
            assert reply.status == 503
        assert session.record.turns == []
        assert (await ask(proxy, session, path, **options)).status == 200
        assert len(session.record.turns) == 3, "those of the call that was answered"


@pytest.mark.parametrize("stream", [False, True])
async def test_wherever_a_client_gives_a_call_up_it_is_recorded_if_it_was_answered(
    nano_format: ChatFormat, stream: bool
) -> None:
    async with opened(nano_format) as proxy:
        given_up = 0
        async with httpx2.AsyncClient(transport=InProcessTransport(proxy.handle), base_url="http://proxy/v1") as http:
            for steps in range(1000):
                session = proxy.open_session(call_log=Kept([]))
                client = openai.AsyncOpenAI(
                    api_key=session.key, base_url="http://proxy/v1", http_client=http, max_retries=0
                )
                answered = False

                async def call(client: openai.AsyncOpenAI = client) -> None:
                    nonlocal answered
                    made: Any = await client.chat.completions.create(model="nano", messages=USER, stream=stream)
                    if stream:
                        async for chunk in made:
                            answered |= chunk.choices[0].finish_reason is not None
                    answered = True

                async with anyio.create_task_group() as group:
                    group.start_soon(call)
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    group.cancel_scope.cancel()
                assert len(session.record.turns) == answered, f"given up after {steps} steps"
                proxy.close_session(session)
                given_up += not answered
                if answered:
                    break
        assert answered
        assert given_up > 5, "the places where a call may be given up"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_a_call_is_committed_before_its_reply_leaves(nano_format: ChatFormat, path: str, stream: bool) -> None:
    async with opened(nano_format) as proxy:
        call_log, said = Held(), bytearray()
        session = proxy.open_session(call_log=call_log)

        async def read() -> None:
            reply = await ask(proxy, session, path, stream=stream)
            said.extend(reply.body)
            if reply.events is not None:
                async for event in reply.events:
                    said.extend(event)

        def is_answered() -> bool:
            return any(end in said.decode() for end in ENDS) if stream else bool(said)

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await wait_until(call_log.begun.is_set, 40)
            await anyio.sleep(0.05)  # a reply that waits for nothing would be there by then
            assert not is_answered()
            assert session.record.turns == []
            call_log.may.set()
        assert is_answered()
        assert len(session.record.turns) == (2 if path == "/v1/completions" else 1)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_program_that_leaves_while_its_reply_is_committed_leaves_nothing(
    nano_format: ChatFormat, path: str
) -> None:
    async with opened(nano_format) as proxy:
        call_log = Held()
        session = proxy.open_session(call_log=call_log)
        headers = {"Authorization": f"Bearer {session.key}"}
        async with (
            httpx2.AsyncClient(base_url=proxy.url, headers=headers, timeout=60) as http,
            anyio.create_task_group() as group,
        ):

            async def post() -> None:
                await http.post(path, json={"model": "nano", **BODIES[path]})

            group.start_soon(post)
            await wait_until(call_log.begun.is_set, 40)
            group.cancel_scope.cancel()
        await wait_until(lambda: session.requests == 0, 40)
        assert session.record.turns == []


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_is_recorded_once_its_reader_has_all_of_it(nano_format: ChatFormat, path: str) -> None:
    async with opened(nano_format) as proxy:
        session = proxy.open_session(call_log=Kept([]))
        events = [event.decode() async for event in (await ask(proxy, session, path, stream=True)).events]
        calls = len(session.record.turns)
        assert calls == (2 if path == "/v1/completions" else 1)
        ends = [number for number, event in enumerate(events) if any(end in event for end in ENDS)]
        for taken in range(len(events) + 1):
            session = proxy.open_session(call_log=Kept([]))
            reply = await ask(proxy, session, path, stream=True)
            for number in range(taken):
                await anext(reply.events)
                await anyio.sleep(0.01)  # it is made to the end meanwhile
                assert len(session.record.turns) == (calls if number >= ends[-1] else 0)
            await reply.events.aclose()
            assert len(session.record.turns) == (calls if taken > ends[-1] else 0)


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_whose_episode_ends_before_its_reader_has_it_is_refused(
    nano_format: ChatFormat, path: str
) -> None:
    async with opened(nano_format) as proxy:
        session = proxy.open_session()
        reply = await ask(proxy, session, path, stream=True)
        events = [await anext(reply.events)]
        await anyio.sleep(0.05)
        proxy.close_session(session)
        with anyio.fail_after(60):
            events += [event async for event in reply.events]
        assert b"ended while the reply was being made" in b"".join(events)
        assert session.record.turns == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_request_that_is_sent_again_since_its_reply_was_lost_gets_that_reply(
    nano_format: ChatFormat, path: str, stream: bool
) -> None:
    """A client may fail to read what it was written: the Anthropic client of Strands keeps connections of an event loop that has ended."""

    async def said(proxy: Proxy, session: Session, **headers: str) -> str:
        body = json.dumps({"model": "nano", **BODIES[path], "stream": stream}).encode()
        reply = await proxy.handle("POST", path, {"x-api-key": session.key, **headers}, body)
        if not stream:
            return str(reply.body.decode())
        return "".join([event.decode() async for event in reply.events or ()])

    again = {"x-stainless-retry-count": "1"}
    async with opened(nano_format) as proxy:
        session = proxy.open_session(call_log=Kept([]))
        first = await said(proxy, session, **{"x-stainless-retry-count": "0"})
        (turn,) = session.record.turns
        second = await said(proxy, session, **again)
        assert session.record.turns == [turn]
        assert turn.completion_id in first
        assert turn.completion_id in second
        await said(proxy, session)
        assert len(session.record.turns) == 2, "another request in the same words is another call"
        other = proxy.open_session()
        await said(proxy, other, **again)
        assert len(other.record.turns) == 1, "a first try of which nothing is known"


async def test_a_reply_that_a_conversation_went_on_from_was_not_lost(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as proxy:
        session = proxy.open_session()
        path = "/v1/chat/completions"
        said = json.loads((await ask(proxy, session, path)).body)["choices"][0]["message"]
        await ask(proxy, session, path, messages=[*USER, said, {"role": "user", "content": "4"}])
        body = json.dumps({"model": "nano", **BODIES[path]}).encode()
        await proxy.handle("POST", path, {"x-api-key": session.key, "x-stainless-retry-count": "2"}, body)
        assert [turn.parent is None for turn in session.record.turns] == [True, False, True]
