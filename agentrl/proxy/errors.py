"""Errors of the APIs that the proxy speaks, in the words that the clients of each understand.

raised while a request is answered ─► ApiError (status, message, field, code) ─► JSON of OpenAI's, Anthropic's or Google's API, by its path
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentrl.errors import EngineError, TooManySessionsError
from agentrl.proxy.http_messages import Response, read_json, to_json

log = logging.getLogger(__name__)
Body = TypeVar("Body", bound=BaseModel)

RETRY_AFTER_S = 1
OUTGROWN = "context_length_exceeded"
"""The code of the refusal of a prompt that is longer than the context."""
_MAX_MESSAGE = 2000
_WORDS = {
    # status: OpenAI's type, Anthropic's type, Google's status
    400: ("invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT"),
    401: ("authentication_error", "authentication_error", "UNAUTHENTICATED"),
    404: ("not_found_error", "not_found_error", "NOT_FOUND"),
    408: ("invalid_request_error", "invalid_request_error", "DEADLINE_EXCEEDED"),
    409: ("invalid_request_error", "invalid_request_error", "FAILED_PRECONDITION"),
    413: ("invalid_request_error", "request_too_large", "INVALID_ARGUMENT"),
    429: ("rate_limit_error", "rate_limit_error", "RESOURCE_EXHAUSTED"),
    500: ("server_error", "api_error", "INTERNAL"),
    503: ("server_error", "api_error", "UNAVAILABLE"),
}
_RETRY_HEADERS = {
    # What was in the way may be gone.
    429: {"retry-after": str(RETRY_AFTER_S)},
    503: {"retry-after": str(RETRY_AFTER_S)},
    # An episode that has ended does not come back, and the clients of OpenAI and Anthropic would ask again.
    409: {"x-should-retry": "false"},
}


class ApiError(Exception):
    """A request that cannot be answered. `param` names the field at fault."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        # What a client sent may be quoted in it, at any length.
        self.message = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]} ..."
        super().__init__(self.message)
        self.status = status
        self.param = param
        self.code = code


def invalid(param: str, problem: str) -> ApiError:
    """Return the refusal of one field's value."""
    return ApiError(400, f"Invalid '{param}': {problem}.", param=param, code="invalid_value")


def read_body(model: type[Body], body: bytes) -> Body:
    """Return a request body as its fields.

    Args:
        model: The fields.
        body: JSON.

    Raises:
        ApiError: 400 that names the field at fault.
    """
    try:
        # Strict: `true` is no number, and "5" neither.
        return model.model_validate(read_json(body), strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
    except ValueError as error:
        raise invalid("body", f"it is not sound JSON: {error}") from None
    # Of a union, pydantic reports every member; the client meant the one that came furthest, or whose type the value has.
    problems.sort(key=lambda p: p["type"].endswith("_type"))
    problem = max(problems, key=lambda p: len(p["loc"]))
    # It also names the member it tried, such as `str`, `list[str]` or a class of ours.
    place = [part for part in problem["loc"] if isinstance(part, int) or (part.isidentifier() and part[0].islower())]
    param = ".".join(str(part) for part in place if part != "str") or None
    raise invalid(param or "body", problem["msg"].removeprefix("Value error, ").partition(" or instance of ")[0])


@dataclass
class Handled:
    """The result of a request."""

    reply: Response = field(default_factory=Response)
    error: ApiError | None = None
    """Why it was refused."""
    request_id: str = field(default_factory=lambda: f"req_{secrets.token_hex(16)}")


@contextmanager
def map_errors(method: str, path: str) -> Iterator[Handled]:
    """Turn what a request raises into the reply that refuses it; only cancellation leaves the context.

    An error that is not expected is logged with a number that the client is told, and without headers, which hold keys.
    """
    handled = Handled()
    try:
        yield handled
    except BaseException as raised:
        if not _is_failure(raised):
            raise
        match first_error(raised):
            case ApiError() as error:
                handled.error = error
            case TooManySessionsError() as error:
                handled.error = ApiError(429, str(error), code="too_many_sessions")
            case EngineError() as error:
                handled.error = ApiError(503, str(error), code="engine_error")
            case error:
                number = handled.request_id
                log.error("%s %r failed (%s)", method, path[:200], number, exc_info=raised)
                message = f"The proxy failed: {type(error).__name__}: {error} ({number})"
                handled.error = ApiError(500, message, code="internal_error")
    if (refused := handled.error) is not None:
        headers = dict(_RETRY_HEADERS.get(refused.status, {}))
        handled.reply = Response(to_json(error_json(refused, path)), refused.status, extra_headers=headers)


def first_error(error: BaseException) -> BaseException:
    """Return the first exception of a group, as task groups raise it; anything else as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_failure(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_failure(one) for one in error.exceptions)
    # A panic of an extension module written in Rust derives from BaseException.
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def error_json(error: ApiError, path: str) -> dict[str, Any]:
    """Return an error in the words of the API of `path`."""
    openai, anthropic, google = _WORDS.get(error.status) or _WORDS[500 if error.status >= 500 else 400]
    if path.startswith(("/v1beta/", "/v1alpha/")) or (path.startswith("/v1/models/") and ":" in path):
        return {"error": {"code": error.status, "message": error.message, "status": google}}
    if path.startswith("/v1/messages"):
        details = {} if error.code is None else {"details": {"error_code": error.code}}
        return {"type": "error", "error": {"type": anthropic, "message": error.message, **details}}
    return {"error": {"message": error.message, "type": openai, "param": error.param, "code": error.code}}
