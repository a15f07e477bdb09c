"""One server: what it says of itself is used, or refused by the name of the field."""

from __future__ import annotations

import resource
from typing import Any

import anyio
import pytest

from agentrl.engine.client import sglang_engine
from agentrl.engine.client.server import ServedModel, SGLangServer, open_session
from agentrl.errors import EngineError
from tests.engine.scripted_server import scripted_server

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tp_size", "2"),
        ("pp_size", 0),
        ("incremental_streaming_output", 1),
        ("grammar_backend", []),
        ("has_image_understanding", "yes"),
        ("max_req_input_len", -1),
    ],
)
async def test_a_field_that_cannot_be_is_refused_by_its_name(field: str, value: Any) -> None:
    async with scripted_server(lambda _: []) as server:
        server.info = {field: value}
        with pytest.raises(EngineError, match=f"{server.url}.*{field}"):
            async with sglang_engine([server.url]):
                pass


async def test_a_process_without_descriptors_waits_for_one_and_holds_nothing_against_the_server() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    answered = anyio.Event()

    async def ask(asked: SGLangServer) -> None:
        await asked.get("/health", 10)
        answered.set()

    async with scripted_server(lambda _: []) as server, open_session() as http, anyio.create_task_group() as group:
        group.start_soon(ask, SGLangServer(http, server.url, ServedModel()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            await anyio.wait_all_tasks_blocked()
            assert not answered.is_set()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert answered.is_set()


async def test_what_a_server_says_of_itself_is_used() -> None:
    async with scripted_server(lambda _: []) as server:
        server.info = {"tp_size": 4, "pp_size": 2, "grammar_backend": "xgrammar", "max_req_input_len": 90, "more": [{}]}
        async with sglang_engine([server.url]) as engine:
            assert (engine.has_grammar, engine.takes_images, engine.context_length) == (True, False, 90)
            assert engine.fleet.servers[0].abilities.ranks == 8
