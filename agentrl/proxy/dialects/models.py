"""`/v1/models`, in one shape that OpenAI's and Anthropic's clients both read."""

from __future__ import annotations

from agentrl.proxy.api_error import ApiError
from agentrl.proxy.completion import Json


def model_list(name: str) -> Json:
    """Return the list of the one model that there is."""
    return {"object": "list", "data": [one_model(name)], "has_more": False, "first_id": name, "last_id": name}


def check_model(name: str, served: str) -> None:
    """Check that a model is the one that is served, as `proxy.strict` wants it.

    Raises:
        ApiError: 404 for another one.
    """
    if name != served:
        message = f"The model '{name}' does not exist; this proxy serves '{served}' (proxy.strict)."
        raise ApiError(404, message, param="model", code="model_not_found")


def one_model(name: str) -> Json:
    """Return what is told of one model."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "agentrl",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
    }
