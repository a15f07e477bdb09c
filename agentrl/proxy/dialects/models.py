"""`/v1/models` and `/v1beta/models`, in one shape that OpenAI's, Anthropic's and Google's clients all read."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.proxy.completion import Json


def model_list(names: Sequence[str], context_length: int) -> Json:
    """Return the list of the one model that there is, under each of its names."""
    models = [one_model(name, context_length) for name in names]
    ends = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return {"object": "list", "data": models, **ends, "models": models}


def one_model(name: str, context_length: int) -> Json:
    """Return the description of one model."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "agentrl",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "name": f"models/{name}",
        "baseModelId": name,
        "version": "1",
        "displayName": name,
        "inputTokenLimit": context_length,
        "outputTokenLimit": context_length,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
    }
