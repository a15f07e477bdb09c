"""`/v1/completions`: text, or ids, to go on from as they are.

A prompt that begins with a recorded prompt and its reply keeps their ids, like a conversation that goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field

from agentrl.proxy.answer import ReadRequest
from agentrl.proxy.completion import Completion, CompletionRequest, Delta, Json
from agentrl.proxy.dialects.chat_completions import ChoicesWriter
from agentrl.proxy.dialects.fields import SampledRequest
from agentrl.proxy.errors import read_body
from agentrl.proxy.session import Session

_Prompt = str | Annotated[list[int], Field(min_length=1, fail_fast=True)]


class TextCompletionRequest(SampledRequest):
    """OpenAI's request; `RequestBody` says what becomes of a field that is not here."""

    prompt: _Prompt | Annotated[list[_Prompt], Field(min_length=1, fail_fast=True)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


class TextWriter(ChoicesWriter):
    """Write replies as `text_completion`s, whole or in pieces."""

    kind = chunk_kind = "text_completion"

    def whole(self, replies: Sequence[Completion]) -> Json:
        """Return the whole reply."""
        choices = [_choice(index, reply.message.content, reply) for index, reply in enumerate(replies)]
        return self.completion(choices, replies)

    def delta(self, index: int, delta: Delta) -> Iterator[Json]:
        """Say what a choice gained."""
        yield self.chunk(_choice(index, delta.text))

    def ended(self, index: int, reply: Completion) -> Iterator[Json]:
        """End a choice."""
        yield self.chunk(_choice(index, "", reply))


def _choice(index: int, text: str, reply: Completion | None = None) -> Json:
    """Return a choice; with its reply, as the last of it."""
    choice: Json = {"index": index, "text": text, "finish_reason": reply and reply.finish, "logprobs": None}
    if reply is not None and (entries := reply.logprobs) is not None:
        tokens = [entry["token"] for entry in entries]
        choice["logprobs"] = {
            "tokens": tokens,
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries],
            "text_offset": [0, *accumulate(map(len, tokens))][: len(tokens)],
        }
    return choice


def read(session: Session, body: bytes) -> ReadRequest:
    """Read a request, which may have several prompts.

    Raises:
        ApiError: A field is wrong.
    """
    request = read_body(TextCompletionRequest, body)
    is_one = isinstance(request.prompt, str) or isinstance(request.prompt[0], int)
    prompts: Any = [request.prompt] if is_one else request.prompt
    requests = [
        CompletionRequest(
            model=request.model,
            raw=prompt,
            choices=len(prompts) * request.n,
            logprobs=request.logprobs is not None,
            top_logprobs=request.logprobs or 0,
            ignored=request.ignored(),
            **request.sampling(),
        )
        for prompt in prompts
    ]
    return requests, partial(TextWriter, request=request)
