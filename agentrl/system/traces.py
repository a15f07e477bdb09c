"""Spans of OpenTelemetry: what happens within what, how long it takes, and in whose trace.

    episode ─┬─ model call ── traceparent ─► engine
             ├─ tool call ── sandbox run            a harness, or a user's own client ── traceparent ─► model call
             └─ grading ── sandbox run              main process ── traceparent ─► worker

Nothing is recorded, and a span costs about a microsecond, unless the standard variables of OpenTelemetry ask for traces (`begin_traces`) or a
program that uses agentrl has set up a tracer provider of its own. No span holds anything of what was said: docs/trackers.md lists what they hold.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

log = logging.getLogger(__name__)
tracer = trace.get_tracer("agentrl")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_W3C = TraceContextTextMapPropagator()
_UNRECORDED = nullcontext(INVALID_SPAN)


def span(
    name: str,
    attributes: Mapping[str, AttributeValue] | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    within: Context | None = None,
) -> AbstractContextManager[Span]:
    """Record a block as a span. An exception that leaves it marks the span with its class; its text may be a model's, and is left out.

    It may only be entered and left by the same task.

    Args:
        name: The span's name.
        attributes: What is known of it at its beginning.
        kind: Whose work it is.
        within: The context of its parent. Default: the current one.
    """
    begun = tracer.start_span(name, within, kind, attributes)
    return _current(begun) if begun.get_span_context().is_valid else _UNRECORDED


def sandbox_run(image: str | None) -> AbstractContextManager[Span]:
    """Record a block as the span of a run in a sandbox of this image."""
    return span("sandbox run", {"agentrl.sandbox.image": image or ""})


@contextmanager
def _current(begun: Span) -> Iterator[Span]:
    with trace.use_span(begun, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield begun
        except BaseException as error:
            fail(begun, type(error).__name__)
            raise


def fail(failed: Span, kind: str) -> None:
    """Mark a span as failed, for a reason of a few that there are."""
    failed.set_attribute("error.type", kind)
    failed.set_status(StatusCode.ERROR)


def headers() -> dict[str, str]:
    """Return the headers that hand the current span on to a server, `traceparent` above all; none where there is no span."""
    carrier: dict[str, str] = {}
    if trace.get_current_span() is not INVALID_SPAN:
        _W3C.inject(carrier)
    return carrier


def variables() -> dict[str, str]:
    """Return the environment variables that hand the current span on to a program: TRACEPARENT, and TRACESTATE where there is one."""
    return {name.upper(): value for name, value in headers().items()}


def taken_over(given: Mapping[str, str]) -> AbstractContextManager[Span]:
    """Have a block's spans belong to the span that the `traceparent` of a request's headers names, if there is one."""
    if not (parent := given.get("traceparent")):
        return _UNRECORDED
    carrier = {"traceparent": parent, "tracestate": given.get("tracestate", "")}
    return trace.use_span(trace.get_current_span(_W3C.extract(carrier, context.get_current())))


def current_or(other: Context) -> Context:
    """Return the current context where it has a span, else the other."""
    return other if trace.get_current_span() is INVALID_SPAN else context.get_current()


def begin_traces() -> None:
    """Send the spans of this process from now on to where the standard variables of OpenTelemetry say, if they do; it is flushed at its end.

    What they say wrong is logged, and keeps nothing from going on.
    """
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "").strip()
    asked = exporter or any(os.environ.get(name) for name in ENDPOINTS)
    if not asked or exporter == "none" or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    if exporter not in ("", "otlp"):
        log.warning("no traces are sent: OTEL_TRACES_EXPORTER = %r is not known here; use otlp, or none", exporter)
        return
    try:
        from agentrl.system.trace_export import export_traces

        export_traces()
    except ImportError as error:
        log.warning(
            "no traces are sent: that needs %s, which the extra `otel` brings: pip install -e '/path/to/agentrl[otel]'",
            error.name,
        )
    except Exception as error:  # the variables are read by OpenTelemetry, which raises what it likes
        log.warning("no traces are sent: %s: %s; mend the variables OTEL_...", type(error).__name__, error)
