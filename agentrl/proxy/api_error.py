"""Errors of the APIs that the proxy speaks: a status, and the JSON that OpenAI's and Anthropic's own clients understand."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Body = TypeVar("Body", bound=BaseModel)

_OPENAI_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {**_OPENAI_TYPES, 413: "request_too_large", 529: "overloaded_error"}


class ApiError(Exception):
    """A request that cannot be answered. `param` names the field at fault."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def openai_json(self) -> dict[str, Any]:
        """The reply's JSON, as OpenAI writes it."""
        kind = _OPENAI_TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic_json(self) -> dict[str, Any]:
        """The reply's JSON, as Anthropic writes it."""
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def invalid(param: str, problem: str) -> ApiError:
    """The refusal of one field's value."""
    return ApiError(400, f"Invalid '{param}': {problem}.", param=param, code="invalid_value")


def read_body(model: type[Body], body: bytes) -> Body:
    """Check a request body. Raises ApiError 400 that names the field at fault."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        problems = error.errors()
    # Of a union, pydantic reports every member; the one that came furthest is what the client meant.
    problem = max(problems, key=lambda p: (p["type"] == "extra_forbidden" and len(p["loc"]) == 1, len(p["loc"])))
    # It also names the member it tried, such as `str`, `list[str]` or a class of ours.
    place = [part for part in problem["loc"] if isinstance(part, int) or (part.isidentifier() and part.islower())]
    param = ".".join(str(part) for part in place if part != "str") or None
    if problem["type"] == "extra_forbidden":
        raise ApiError(400, f"Unsupported parameter: '{param}'.", param=param, code="unsupported_parameter")
    raise invalid(param or "body", problem["msg"])
