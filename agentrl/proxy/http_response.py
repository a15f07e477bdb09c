"""HTTP replies of the proxy, and which of them refuses what a request has raised."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentrl.errors import EngineError, TooManySessionsError
from agentrl.proxy.api_error import ApiError
from agentrl.proxy.completion import Json
from agentrl.proxy.headers import retry_headers
from agentrl.proxy.json_text import to_json

log = logging.getLogger(__name__)


@dataclass
class Response:
    """An HTTP reply: `body`, or server-sent events as they come."""

    body: bytes = b""
    status: int = 200
    events: AsyncGenerator[bytes, None] | None = None
    extra_headers: dict[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        """Its headers."""
        return {"Content-Type": "application/json", **self.extra_headers}


def json_response(content: Json) -> Response:
    """Return content as a reply."""
    return Response(to_json(content))


@dataclass
class Answered:
    """The result of a request."""

    reply: Response = field(default_factory=Response)
    error: ApiError | None = None
    """Why it was refused."""
    request_id: str = field(default_factory=lambda: f"req_{uuid.uuid4().hex}")


@contextmanager
def refusals(method: str, path: str) -> Iterator[Answered]:
    """Turn what a request raises into the reply that refuses it; only cancellation leaves the context.

    What nobody expects is logged with a number that the client is told, and without headers, which hold keys.
    """
    answered = Answered()
    try:
        yield answered
    except ApiError as error:
        answered.error = error
    except TooManySessionsError as error:
        answered.error = ApiError(429, str(error), code="too_many_sessions")
    except EngineError as error:
        answered.error = ApiError(503, str(error), code="engine_error")
    except BaseException as error:
        if not _is_failure(error):
            raise
        number = answered.request_id
        log.error("%s %r failed (%s)", method, path[:200], number, exc_info=error)
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        message = f"The proxy failed: {type(error).__name__}: {error} ({number})"
        answered.error = ApiError(500, message, code="internal_error")
    if answered.error is not None:
        answered.reply = refusal(answered.error, path)


def _is_failure(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_failure(one) for one in error.exceptions)
    # A panic of an extension module written in Rust derives from BaseException.
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def is_googles(path: str) -> bool:
    """Return whether a path is one of Google's API."""
    return path.startswith(("/v1beta/", "/v1alpha/")) or (path.startswith("/v1/models/") and ":" in path)


def refusal(error: ApiError, path: str) -> Response:
    """Return the reply that says why there is none, in the words of the API of `path`."""
    return Response(to_json(error_json(error, path)), error.status, extra_headers=retry_headers(error.status))


def error_json(error: ApiError, path: str) -> Json:
    """Return an error in the words of the API of `path`."""
    if is_googles(path):
        return error.google_json()
    return error.anthropic_json() if path.startswith("/v1/messages") else error.openai_json()
