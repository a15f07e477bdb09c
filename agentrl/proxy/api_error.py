"""Errors of the APIs that the proxy speaks: a status, and the JSON that OpenAI's and Anthropic's own clients understand."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentrl.proxy.json_text import MAX_JSON_DEPTH, read_json

Body = TypeVar("Body", bound=BaseModel)

_MAX_MESSAGE = 2000
_OPENAI_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_GOOGLE_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "FAILED_PRECONDITION",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
_LISTED_PROBLEMS = 100
"""Problems of one body that are looked at, at most: listing them takes longer than finding them."""
_ANTHROPIC_TYPES = {**_OPENAI_TYPES, 413: "request_too_large", 529: "overloaded_error"}


class ApiError(Exception):
    """A request that cannot be answered. `param` names the field at fault."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        # What a client sent may be quoted in it, at any length.
        self.message = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]} ..."
        super().__init__(self.message)
        self.status = status
        self.param = param
        self.code = code

    def openai_json(self) -> dict[str, Any]:
        """Return the reply's JSON, as OpenAI writes it."""
        kind = _OPENAI_TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic_json(self) -> dict[str, Any]:
        """Return the reply's JSON, as Anthropic writes it."""
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        error: dict[str, Any] = {"type": kind, "message": self.message}
        if self.code is not None:
            error["details"] = {"error_code": self.code}
        return {"type": "error", "error": error}

    def google_json(self) -> dict[str, Any]:
        """Return the reply's JSON, as Google writes it."""
        error: dict[str, Any] = {
            "code": self.status,
            "message": self.message,
            "status": _GOOGLE_STATUSES.get(self.status, "INTERNAL"),
        }
        details: list[dict[str, Any]] = []
        if self.code is not None:
            details.append(
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": self.code, "domain": "agentrl"}
            )
        if self.param is not None:
            violations = [{"field": self.param, "description": self.message}]
            details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations})
        return {"error": {**error, "details": details} if details else error}


def invalid(param: str, problem: str) -> ApiError:
    """Return the refusal of one field's value."""
    return ApiError(400, f"Invalid '{param}': {problem}.", param=param, code="invalid_value")


def read_body(model: type[Body], body: bytes) -> Body:
    """Check a request body: sound JSON, of fields of the right types.

    Args:
        model: The fields.
        body: The body.

    Raises:
        ApiError: 400 that names the field at fault.
    """
    try:
        read_json(body)
    except ValueError as error:
        depth = f" (proxy bodies nest at most {MAX_JSON_DEPTH} levels)" if "recursion" in str(error) else ""
        raise invalid("body", f"it is not sound JSON: {error}{depth}") from None
    try:
        # Strict: `true` is no number, and "5" neither.
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        if (count := error.error_count()) > _LISTED_PROBLEMS:
            raise invalid("body", f"{count} of its fields are unknown or have values of another type") from None
        problems = error.errors(include_url=False, include_context=False, include_input=False)
    # Of a union, pydantic reports every member; the client meant the one that came furthest, or whose type the value has.
    problems.sort(key=lambda p: p["type"].endswith("_type"))
    problem = max(problems, key=lambda p: (p["type"] == "extra_forbidden" and len(p["loc"]) == 1, len(p["loc"])))
    # It also names the member it tried, such as `str`, `list[str]` or a class of ours.
    place = [part for part in problem["loc"] if isinstance(part, int) or (part.isidentifier() and part[0].islower())]
    param = ".".join(str(part) for part in place if part != "str") or None
    if problem["type"] == "extra_forbidden":
        raise ApiError(400, f"Unsupported parameter: '{param}'.", param=param, code="unsupported_parameter")
    raise invalid(param or "body", problem["msg"])
