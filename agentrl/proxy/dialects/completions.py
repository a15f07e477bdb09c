"""`/v1/completions`: text, or ids, to go on from as they are.

A prompt that begins with a recorded prompt and its reply keeps their ids, like a conversation that goes on.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated

from pydantic import Field

from agentrl.proxy.call_log import digest_of_several
from agentrl.proxy.completion import Completion, CompletionRequest, Delta, Json, PreparedCompletion, Send
from agentrl.proxy.completion_service import CompletionService, all_of
from agentrl.proxy.dialects.altered_sampling import SamplingRequestBody
from agentrl.proxy.dialects.chat_completions import usage
from agentrl.proxy.dialects.chat_request import Seed, Tokens, stop_strings
from agentrl.proxy.dialects.fields import Part
from agentrl.proxy.errors import read_body
from agentrl.proxy.session import SessionRole

Ids = Annotated[list[int], Field(min_length=1, fail_fast=True)]


class _StreamOptions(Part):
    include_usage: bool = False


class TextCompletionRequest(SamplingRequestBody):
    """OpenAI's request; `RequestBody` says what becomes of a field that is not here."""

    model: str
    prompt: (
        str
        | Ids
        | Annotated[list[str], Field(min_length=1, fail_fast=True)]
        | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]
    )
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    max_tokens: Tokens | None = None
    seed: Seed | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


class Completions:
    """The endpoint."""

    def __init__(self, service: CompletionService) -> None:
        self._service = service

    def prepare(self, role: SessionRole, body: bytes) -> tuple[TextCompletionRequest, list[PreparedCompletion]]:
        """Check a request; return one call a prompt, all of one request.

        Raises:
            ApiError: The request cannot be answered.
        """
        request = read_body(TextCompletionRequest, body)
        prompt = request.prompt
        many = isinstance(prompt, list) and not isinstance(prompt[0], int)
        choices = (len(prompt) if many else 1) * (request.n or 1)
        ignored = request.ignored()
        calls = [
            self._service.prepare(
                role,
                CompletionRequest(
                    model=request.model,
                    raw=raw,  # type: ignore[arg-type]
                    stop=stop_strings(request.stop),
                    max_tokens=request.max_tokens,
                    temperature=request.temperature,
                    top_p=request.top_p,
                    seed=request.seed,
                    alterations=request.alterations(),
                    choices=choices,
                    logprobs=request.logprobs is not None,
                    top_logprobs=request.logprobs or 0,
                    ignored=ignored,
                ),
                "cmpl-",
            )
            for raw in (prompt if many else [prompt])
        ]
        if many:
            digest = digest_of_several([call.digest for call in calls])
            for position, call in enumerate(calls):
                call.digest, call.first_choice = digest, position * (request.n or 1)
        return request, calls

    async def complete(self, request: TextCompletionRequest, calls: list[PreparedCompletion]) -> Json:
        """Return the whole reply as one `text_completion`."""
        per_prompt = request.n or 1
        replies: list[Completion | None] = [None] * (len(calls) * per_prompt)

        async def one(index: int) -> None:
            replies[index] = await self._service.reply(calls[index // per_prompt], index % per_prompt)

        await all_of(one, len(replies))
        choices = [
            await self._choice(request, calls[0], index, reply)
            for index, reply in enumerate(replies)
            if reply is not None
        ]
        return {**_head(calls[0]), "choices": choices, "usage": _usage(calls, replies)}

    async def stream(self, request: TextCompletionRequest, calls: list[PreparedCompletion], send: Send) -> None:
        """Send the reply as pieces of text.

        Raises:
            ApiError: The engine failed, or the episode has ended.
        """
        per_prompt = request.n or 1
        replies: list[Completion | None] = [None] * (len(calls) * per_prompt)
        head = _head(calls[0])
        ended = 0

        async def one(index: int) -> None:
            nonlocal ended

            async def emit(delta: Delta) -> None:
                choice = {"index": index, "text": delta.text, "finish_reason": None, "logprobs": None}
                await send({**head, "choices": [choice]})

            reply = replies[index] = await self._service.reply(calls[index // per_prompt], index % per_prompt, emit)
            choice = await self._choice(request, calls[0], index, reply)
            ended += 1
            await send({**head, "choices": [{**choice, "text": ""}]}, whole=ended == len(replies))

        await all_of(one, len(replies))
        if request.stream_options and request.stream_options.include_usage:
            await send({**head, "choices": [], "usage": _usage(calls, replies)})

    async def _choice(
        self, request: TextCompletionRequest, call: PreparedCompletion, index: int, reply: Completion
    ) -> Json:
        choice = {"index": index, "text": reply.message.content, "finish_reason": reply.finish, "logprobs": None}
        if request.logprobs is not None:
            entries = await self._service.logprobs(call, reply.generation)
            tokens = [entry["token"] for entry in entries]
            choice["logprobs"] = {
                "tokens": tokens,
                "token_logprobs": [entry["logprob"] for entry in entries],
                "top_logprobs": [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries],
                "text_offset": [0, *accumulate(map(len, tokens))][: len(tokens)],
            }
        return choice


def _head(call: PreparedCompletion) -> Json:
    return {"id": call.id, "object": "text_completion", "created": call.created, "model": call.request.model}


def _usage(calls: list[PreparedCompletion], replies: list[Completion | None]) -> Json:
    total = usage(calls[0], [reply for reply in replies if reply is not None])
    total["prompt_tokens"] = sum(len(call.prompt.input_ids) for call in calls)
    total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    return total
