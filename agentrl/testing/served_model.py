"""A real model in the place of a scripted one: what it is asked is kept, and a server of this machine replies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from agentrl.config import RunConfig
from agentrl.proxy import SamplingDefaults
from agentrl.rollout.open_runner import chat_format_of, open_engine, open_model_proxy
from agentrl.system.tasks import in_thread
from agentrl.testing.scripted_model import Refusal, Reply, Request, ScriptedModel


@asynccontextmanager
async def served_model(config: RunConfig) -> AsyncIterator[ScriptedModel]:
    """Serve the model of a configuration for the length of the context. Yields it with the face of a scripted one."""
    chat_format = await in_thread(chat_format_of, config, abandon_on_cancel=True)
    async with (
        open_engine(config) as engine,
        open_model_proxy(config, engine, chat_format) as proxy,
    ):
        session = proxy.open_session(SamplingDefaults(max_tokens=config.rollout.max_tokens))
        http = await in_thread(partial(DefaultAsyncHttpxClient, trust_env=False))  # making it reads certificates
        async with AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, max_retries=0, http_client=http) as client:
            yield ScriptedModel(lambda request: _forwarded(client, proxy.model, request))


async def _forwarded(client: AsyncOpenAI, model: str, request: Request) -> Reply:
    plain = {name: value for name, value in request.items() if name not in ("stream", "stream_options", "n")}
    try:
        reply = await client.chat.completions.create(**{**plain, "model": model})
    except openai.APIStatusError as error:
        return Refusal(error.status_code, error.message)
    message: dict[str, Any] = reply.choices[0].message.model_dump(exclude_none=True)
    return message
