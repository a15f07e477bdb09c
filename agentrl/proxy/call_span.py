"""The span of one model call, in the words of OpenTelemetry's conventions for generative AI: docs/tracing.md."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from agentrl.proxy.completion import PreparedCompletion
from agentrl.system import traces


def call_span(calls: Sequence[PreparedCompletion], within: Context) -> AbstractContextManager[Span]:
    """Record a block, which makes the replies to one request, as a span.

    Args:
        calls: The request, as one call for each of its prompts.
        within: The context of the span's parent.
    """
    asked = calls[0].request
    operation = "chat" if asked.raw is None else "text_completion"
    names = {"gen_ai.operation.name": operation, "gen_ai.request.model": asked.model, "gen_ai.provider.name": "agentrl"}
    return traces.span(f"{operation} {asked.model}", names, kind=SpanKind.CLIENT, within=within)


def describe_replies(span: Span, calls: Sequence[PreparedCompletion]) -> None:
    """Write into the span of a request how its replies ended, and what they took."""
    if not span.is_recording():
        return
    replies = [reply for call in calls for _, reply in sorted(call.made.items())]
    versions = [part.version for reply in replies for part in reply.generation.versions]
    span.set_attributes(
        {
            "gen_ai.response.id": calls[0].id,
            "gen_ai.response.finish_reasons": [reply.finish for reply in replies],
            "gen_ai.usage.input_tokens": sum(len(call.prompt.input_ids) for call in calls),
            "gen_ai.usage.output_tokens": sum(len(reply.generation.output_ids) for reply in replies),
            "gen_ai.usage.cache_read.input_tokens": sum(reply.generation.cached_tokens for reply in replies),
        }
    )
    if role := calls[0].role.name:
        span.set_attribute("agentrl.role", role)
    if versions:
        span.set_attributes({"agentrl.version.oldest": min(versions), "agentrl.version.newest": max(versions)})
