"""The way of spans to a collector, by OTLP over HTTP: a queue with a bound, and a thread that sends what is in it.

    span ends ─► queue (2,048; what is more is dropped) ─► thread ─► OTEL_EXPORTER_OTLP_ENDPOINT
                                                             └─ it does not answer: said once

It needs the extra `otel`, and is imported where traces are asked for. `agentrl.system.traces` does that.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from agentrl.system.failure_text import without_secrets

log = logging.getLogger(__name__)
FLUSH_TIMEOUT_S = 5.0
"""How long the end of the process waits for spans that are not sent yet."""


class Exporter(OTLPSpanExporter):
    """An exporter that says once that spans are lost."""

    _said = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send some spans."""
        result = super().export(spans)
        if result is SpanExportResult.FAILURE and not self._said:
            self._said = True
            log.warning(
                "traces are lost: %s does not take them (OTEL_EXPORTER_OTLP_ENDPOINT). Nothing else is; this is said once",
                without_secrets(self._endpoint),
            )
        return result


def export_traces() -> None:
    """Send the spans of this process, until it ends, as the standard variables say."""
    # Each batch that fails is an error, and each retry a warning, for as long as a run goes on.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):  # the variables name none
        resource = resource.merge(Resource({SERVICE_NAME: "agentrl"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Exporter()))
    trace.set_tracer_provider(provider)
    atexit.register(_flush, provider)


def _flush(provider: TracerProvider) -> None:
    """Send what is left, within `FLUSH_TIMEOUT_S`: OpenTelemetry's own bound is six times that."""
    sending = threading.Thread(target=provider.shutdown, daemon=True)
    sending.start()
    sending.join(FLUSH_TIMEOUT_S)
    if sending.is_alive():
        log.warning("the last traces are lost: they were not taken within %g s", FLUSH_TIMEOUT_S)
