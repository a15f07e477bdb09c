"""The list of models, in a shape that the clients of every dialect read. Agents hard-code names of other models: any is answered."""

from __future__ import annotations

from typing import Any


def model_list(name: str, context_length: int) -> dict[str, Any]:
    """Return the list of the one model that there is, in one shape that all clients read."""
    models = [one_model(name, context_length)]
    return {"object": "list", "data": models, "has_more": False, "first_id": name, "last_id": name, "models": models}


def one_model(name: str, context_length: int) -> dict[str, Any]:
    """Return the description of one model, in one shape that OpenAI's, Anthropic's and Google's clients read."""
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
