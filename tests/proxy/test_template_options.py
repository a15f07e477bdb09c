"""`chat_template_kwargs`: the prompt is what the model's own template makes of them, and a record goes on where they stay the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.proxy import ChatFormat, Proxy, Session, load_chat_format, open_proxy
from tests.instant_engine import InstantEngine
from tests.template_model import model_with_template

pytestmark = pytest.mark.anyio
USER: dict[str, Any] = {"role": "user", "content": "1 2 3"}
SILENT = {"chat_template_kwargs": {"enable_thinking": False}}


async def asked(proxy: Proxy, session: Session, messages: list[Any], **change: Any) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {session.key}"}
    body = json.dumps({"model": "nano", "messages": messages, **change}).encode()
    reply = await proxy.handle("POST", "/v1/chat/completions", headers, body)
    return reply.status, json.loads(reply.body)


async def test_the_prompt_is_that_of_the_models_template(nano_format: ChatFormat) -> None:
    async with open_proxy(InstantEngine(), nano_format, "nano") as proxy:
        session = proxy.open_session()
        for value in (False, True):
            await asked(proxy, session, [USER], chat_template_kwargs={"enable_thinking": value})
        await asked(proxy, session, [USER], chat_template_kwargs={})
    silent, thinking, plain = [turn.prompt_ids for turn in session.record.turns]
    assert thinking == plain
    assert silent != plain
    thought = nano_format.decode(silent).removeprefix(nano_format.decode(plain))
    assert thought == "<think>\n\n</think>\n\n", "as Qwen3's template ends a prompt without thinking"


async def test_a_conversation_goes_on_where_they_stay_the_same_and_begins_anew_where_not(
    nano_format: ChatFormat,
) -> None:
    async with open_proxy(InstantEngine(), nano_format, "nano") as proxy:
        session = proxy.open_session()
        _, reply = await asked(proxy, session, [USER], **SILENT)
        messages = [USER, reply["choices"][0]["message"], USER]
        await asked(proxy, session, messages, **SILENT)
        await asked(proxy, session, messages)
        await asked(proxy, session, messages, chat_template_kwargs={"enable_thinking": True})
    first, second, third, fourth = session.record.turns
    assert second.parent is first
    assert (third.parent, fourth.parent) == (None, None)
    assert third.prompt_ids == fourth.prompt_ids


@pytest.mark.parametrize("options", [{"thinking": True}, {"enable_thinking": "maybe"}, {"thinking_retention": "all"}])
async def test_what_the_template_does_not_have_is_refused(nano_format: ChatFormat, options: Any) -> None:
    async with open_proxy(InstantEngine(), nano_format, "nano") as proxy:
        session = proxy.open_session()
        status, reply = await asked(proxy, session, [USER], chat_template_kwargs=options)
    assert status == 400
    assert reply["error"]["param"] == "chat_template_kwargs"
    assert not session.record.turns


@pytest.fixture
def templated(tmp_path: Path) -> ChatFormat:
    """A format that knows nothing of the model but its template."""
    said = (
        "{% for message in messages %}{{ message.content }}{% endfor %}{{ '' if enable_thinking is false else ' 1' }}"
    )
    return load_chat_format(model_with_template(tmp_path / "model", said), "default")


async def test_a_template_of_any_kind_gets_options_and_no_arguments_of_the_function_that_renders_it(
    templated: ChatFormat,
) -> None:
    async with open_proxy(InstantEngine(), templated, "nano") as proxy:
        session = proxy.open_session()
        assert (await asked(proxy, session, [USER], **SILENT))[0] == 200
        assert (await asked(proxy, session, [USER]))[0] == 200
        for name in ("chat_template", "tokenize", "truncation", "conversation", "tools"):
            status, reply = await asked(proxy, session, [USER], chat_template_kwargs={name: None})
            assert status == 400, name
            assert f"'{name}' is no option of the template" in reply["error"]["message"]
    silent, plain = [turn.prompt_ids for turn in session.record.turns]
    assert silent != plain
