"""The OpenAPI document of the model APIs, from the same models that check the requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from agentrl.proxy.dialects.chat_request import ChatRequest
from agentrl.proxy.dialects.completions import TextCompletionRequest
from agentrl.proxy.dialects.gemini_request import CountTokensRequest, GenerateRequest
from agentrl.proxy.dialects.messages_request import CountRequest, MessagesRequest
from agentrl.proxy.dialects.responses_request import ResponsesRequest

Paths = Mapping[tuple[str, str], type[BaseModel] | None]
"""Method and path -> the model of the body; None: no body."""

MODEL_APIS: Paths = {
    ("POST", "/v1/chat/completions"): ChatRequest,
    ("POST", "/v1/completions"): TextCompletionRequest,
    ("POST", "/v1/responses"): ResponsesRequest,
    ("GET", "/v1/responses/{id}"): None,
    ("DELETE", "/v1/responses/{id}"): None,
    ("POST", "/v1/messages"): MessagesRequest,
    ("POST", "/v1/messages/count_tokens"): CountRequest,
    ("POST", "/v1beta/models/{model}:generateContent"): GenerateRequest,
    ("POST", "/v1beta/models/{model}:streamGenerateContent"): GenerateRequest,
    ("POST", "/v1beta/models/{model}:countTokens"): CountTokensRequest,
    ("GET", "/v1beta/models"): None,
    ("GET", "/v1beta/models/{model}"): None,
    ("GET", "/v1/models"): None,
    ("GET", "/v1/models/{model}"): None,
    ("GET", "/health"): None,
    ("GET", "/openapi.json"): None,
}
_OPEN_PATHS = ("/health", "/openapi.json")


@cache
def openapi_document() -> dict[str, Any]:
    """Return the document of what a proxy answers."""
    return describe(MODEL_APIS)


def describe(paths: Paths) -> dict[str, Any]:
    """Return an OpenAPI 3.1 document of `paths`. Each but `/health` and the document takes a bearer key."""
    template = "#/components/schemas/{model}"
    models = sorted({model for model in paths.values() if model is not None}, key=lambda model: model.__name__)
    refs, schemas = models_json_schema([(model, "validation") for model in models], ref_template=template)
    described: dict[str, Any] = {}
    for (method, path), model in paths.items():
        operation: dict[str, Any] = {
            "responses": {"200": {"description": "The reply."}, "4XX": {"description": "Why there is none."}}
        }
        if names := re.findall(r"{(\w+)}", path):
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ]
        if model is not None:
            content = {"application/json": {"schema": refs[model, "validation"]}}
            operation["requestBody"] = {"required": True, "content": content}
        if path not in _OPEN_PATHS:
            operation["security"] = [{"key": []}]
        described.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "agentrl", "version": "1"},
        "paths": described,
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
