"""`/v1/models`, in one shape that OpenAI's and Anthropic's clients both read."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.proxy.completion import Json


def model_list(names: Sequence[str]) -> Json:
    """Return the list of the one model that there is, under each of its names."""
    data = [one_model(name) for name in names]
    return {"object": "list", "data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}


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
