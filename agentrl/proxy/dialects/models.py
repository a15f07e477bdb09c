"""`/v1/models`, in one shape that OpenAI's and Anthropic's clients both read."""

from __future__ import annotations

from agentrl.proxy.completion import Json


def model_list(name: str) -> Json:
    """Return the list of the one model that there is."""
    return {"object": "list", "data": [one_model(name)], "has_more": False, "first_id": name, "last_id": name}


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
