"""Errors of the OpenAI API: a status, and the JSON that OpenAI's own clients understand."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A request that cannot be answered. `param` names the field at fault."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def content(self) -> dict[str, Any]:
        """The reply's JSON."""
        kind = {401: "authentication_error", 404: "not_found_error"}.get(self.status, "invalid_request_error")
        if self.status >= 500:
            kind = "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
