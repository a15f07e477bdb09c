"""`ScriptedModel`: an OpenAI-compatible model whose replies a test writes.

    model = ScriptedModel(ToolCall("calculator", {"expression": "2 + 3"}), "5")      # by turn
    model = ScriptedModel(lambda request: request["messages"][-1]["content"])        # by a function of the request

    async with scripted_episode(model, {"question": "2 + 3 ="}) as episode:          # episode.client speaks to it
        assert await run(episode) == 1.0
    async with model.serve() as base_url: ...                                        # and so may any other program

The requests come as JSON in the form of OpenAI's chat completions, and are kept in `model.requests`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from aiohttp import web
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from agentrl.config import RunConfig
from agentrl.episode import Episode, EpisodeState
from agentrl.rollout.episode_parts import open_environments, open_run_sandboxes
from agentrl.system.failure_text import describe, failure_line
from agentrl.system.tasks import in_thread

Request = dict[str, Any]
"""The body of a request: `messages`, `tools`, `model`, `temperature`, ..."""
_HEADERS = {"retry-after-ms": "10"}
"""Clients that try again do so at once."""
_NOT_SPOKEN = "a ScriptedModel speaks chat completions alone, not {}; try the agent with `agentrl eval --model nano`, which speaks all"


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool, as a reply or as one of several in a list."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """A text is sent as it is, so that it may be no JSON."""

    def as_json(self, call_id: str) -> dict[str, Any]:
        """Return the call in OpenAI's form."""
        arguments = self.arguments if isinstance(self.arguments, str) else json.dumps(dict(self.arguments))
        return {"id": call_id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


@dataclass(frozen=True)
class Refusal:
    """An HTTP error in place of a reply. OpenAI's clients try again after 408, 409, 429 and 5xx."""

    status: int
    message: str = "refused by the script"


Reply = str | ToolCall | Sequence[ToolCall] | Mapping[str, Any] | Refusal
"""Text, tool calls, a whole assistant message, or an error."""
Script = Callable[[Request], Reply | Awaitable[Reply]]


class ScriptedModel:
    """A model that says what a test wants to hear.

    Args:
        replies: The replies in turn; after the last one requests are refused. Or one function, plain or async, of the request.

    Attributes:
        requests: The requests that came, in their order.
    """

    def __init__(self, *replies: Reply | Script) -> None:
        self.requests: list[Request] = []
        self._script: Script = replies[0] if len(replies) == 1 and callable(replies[0]) else _in_turn(replies)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve the model on the loopback for the length of the context. Yields the base URL."""
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()

    async def reply(self, request: Request) -> Reply:
        """Return the script's reply to a request, and keep the request."""
        self.requests.append(request)
        reply = self._script(request)
        return await reply if inspect.isawaitable(reply) else reply

    async def _answer(self, http: web.Request) -> web.Response:
        request: Request = json.loads(await http.read() or b"{}")
        try:
            spoken = http.path.endswith("/chat/completions")
            reply = await self.reply(request) if spoken else Refusal(404, _NOT_SPOKEN.format(http.path))
        except Exception as error:
            reply = Refusal(400, f"the script raised {failure_line(describe(error))}")
        # The same for the same request, so that an episode that is run twice sees the same.
        completion_id = f"scripted-{hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:12]}"
        if isinstance(reply, Refusal):
            refusal = {"error": {"message": reply.message, "type": "scripted", "code": reply.status}}
            return web.json_response(refusal, status=reply.status, headers=_HEADERS)
        message = as_message(reply, completion_id)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        head = {"id": completion_id, "created": 0, "model": request.get("model", "scripted")}
        if not request.get("stream"):
            choice = {"message": message, "finish_reason": reason}
            choices = [{"index": index, **choice} for index in range(request.get("n") or 1)]
            return web.json_response({**head, "object": "chat.completion", "choices": choices})
        calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls") or ())]
        delta = {**message, **({"tool_calls": calls} if calls else {})}
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        chunk = json.dumps({**head, "object": "chat.completion.chunk", "choices": choices})
        return web.Response(text=f"data: {chunk}\n\ndata: [DONE]\n\n", content_type="text/event-stream")


@asynccontextmanager
async def scripted_episode(
    model: ScriptedModel, task: Any = None, *, seed: int = 0, config: RunConfig | None = None
) -> AsyncIterator[Episode[Any]]:
    """Yield an episode whose model is `model`; its environments are closed, and its sandboxes given back, at the end.

    Args:
        model: Answers `episode.client`, and other programs at `episode.base_url`.
        task: `episode.task`, as the workflow takes it. Default: an empty dict.
        seed: `episode.seed` and `episode.group_seed`.
        config: Its `sandbox` section says what sandboxes are made of. Default: that of a run.
    """
    state = EpisodeState()
    async with (
        open_environments() as make_env,
        open_run_sandboxes(config or RunConfig()) as sandboxes,
        model.serve() as base_url,
        await in_thread(partial(DefaultAsyncHttpxClient, trust_env=False)) as http,
    ):
        try:
            yield Episode(
                task={} if task is None else task,
                seed=seed,
                client=AsyncOpenAI(api_key="-", base_url=base_url, http_client=http),
                base_url=base_url,
                api_key="-",
                model="scripted",
                make_env=make_env,
                sandboxes=sandboxes,
                state=state,
            )
        finally:
            with anyio.CancelScope(shield=True):
                await state.close()


def _in_turn(replies: Sequence[Any]) -> Script:
    left = iter(replies)
    over = Refusal(400, f"the script has {len(replies)} replies, and the model was asked once more")
    return lambda _: next(left, over)


def as_message(reply: Reply, completion_id: str) -> dict[str, Any]:
    """Return a reply as an assistant message; its tool calls are numbered after `completion_id`."""
    match reply:
        case str():
            return {"role": "assistant", "content": reply}
        case Mapping():
            return {"role": "assistant", "content": None, **reply}
    calls: Sequence[Any] = [reply] if isinstance(reply, ToolCall) else reply  # type: ignore[assignment]
    made = [call.as_json(f"{completion_id}-{index}") for index, call in enumerate(calls)]
    return {"role": "assistant", "content": None, "tool_calls": made}
