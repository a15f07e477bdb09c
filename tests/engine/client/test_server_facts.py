"""Whatever a server says of itself, it is believed, or refused by the name of the field."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.engine.client.sglang import sglang_engine
from agentrl.errors import EngineError
from tests.engine.scripted_server import scripted_server

pytestmark = pytest.mark.anyio
ANYTHING: list[Any] = ["x", "", "1", -1, 0, 1, 1.5, 10**30, None, True, [], [1], {}, {"a": 1}, "\ud800"]
BELIEVED: dict[str, list[Any]] = {
    "tp_size": [1],
    "pp_size": [1],
    "incremental_streaming_output": [None, True],
    "grammar_backend": ["x", "", "1", None],
    "has_image_understanding": [None, True],
    "weight_version": ["x", "1", 0, 1, 10**30],
}


@pytest.mark.parametrize("field", BELIEVED)
async def test_a_field_of_any_value_is_believed_or_refused_by_its_name(field: str) -> None:
    async with scripted_server(lambda _: []) as server:
        for value in ANYTHING:
            server.info = {field: value}
            if any(type(value) is type(one) and value == one for one in BELIEVED[field]):
                async with sglang_engine([server.url]) as engine:
                    assert engine.version >= 0
                    assert all(
                        type(one.abilities.ranks) is int and one.abilities.ranks > 0 for one in engine.fleet.servers
                    )
            else:
                with pytest.raises(EngineError, match=f"{server.url}.*({field}|not JSON)"):
                    async with sglang_engine([server.url]):
                        pass
