"""Bounds of a request, each checked before the work that it bounds.

bytes ─► items ─► JSON ─► messages, tools, choices, stop strings, images, least tokens ─► rendered ─► logprobs
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from agentrl.config.proxy import ProxyLimits
from agentrl.proxy.api_error import ApiError, invalid
from agentrl.proxy.json_text import MAX_JSON_DEPTH, too_deep


def too_large(limits: ProxyLimits) -> ApiError:
    """Return the refusal of a body beyond the limit."""
    message = f"The request is larger than {limits.max_request_bytes} bytes (`proxy.max_request_bytes`)."
    return ApiError(413, message, code="request_too_large")


def check_body(body: bytes, limits: ProxyLimits) -> None:
    """Check what can be said of a body before it is read as JSON.

    Raises:
        ApiError: 413 where it has too many bytes, 400 where it has too many items.
    """
    if len(body) > limits.max_request_bytes:
        raise too_large(limits)
    if len(body) > 2 * limits.max_json_items:  # an item takes two bytes at least
        items = sum(body.count(mark) for mark in (b",", b"[", b"{"))
        check_count("body", "commas, brackets and braces", items, limits.max_json_items, "max_json_items")


def check_count(field: str, things: str, count: int, limit: int, setting: str) -> None:
    """Check that a field has no more things in it than a setting of the proxy allows.

    Args:
        field: Name of the field.
        things: What is counted, in the plural.
        count: How many there are.
        limit: How many are allowed.
        setting: Name of the setting in `proxy`.

    Raises:
        ApiError: 400 that names the field and the setting.
    """
    if count > limit:
        raise invalid(field, f"{count} {things} are more than the {limit} that `proxy.{setting}` allows")


def check_conversation(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], stop: Sequence[str], limits: ProxyLimits
) -> None:
    """Check the parts of a request.

    Raises:
        ApiError: 400 that names the field, its value and the limit.
    """
    check_count("messages", "messages", len(messages), limits.max_messages, "max_messages")
    check_count("tools", "tools", len(tools), limits.max_tools, "max_tools")
    check_count("stop", "stop strings", len(stop), limits.max_stop_strings, "max_stop_strings")
    check_count("stop", "bytes", sum(len(text.encode()) for text in stop), limits.max_stop_bytes, "max_stop_bytes")


def check_depth(messages: Sequence[dict[str, Any]]) -> None:
    """Check tool calls that are to be rendered. Those in a recorded path are not: the model may write what it likes.

    Raises:
        ApiError: 400: the arguments of one are nested too deeply.
    """
    for message in messages:
        for call in message.get("tool_calls") or ():
            if too_deep(call["function"]["arguments"]):
                problem = f"the arguments of a tool call are nested deeper than {MAX_JSON_DEPTH} levels"
                raise invalid("messages", problem)


def least_tokens(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], longest_token: int) -> int:
    """Fewer tokens than any tokenizer whose longest token has `longest_token` bytes makes of a conversation's texts."""
    size = sum(_text_bytes(message) for message in messages)
    for tool in tools:
        function = tool["function"]
        size += len(function["name"]) + len(function.get("description") or "")
    # A template writes the role of each message, at one token or more.
    return max(size // longest_token, len(messages))


def check_length(tokens: int, context_length: int, *, least: bool = False) -> None:
    """Check that a prompt leaves room for a reply.

    Args:
        tokens: Of the prompt.
        context_length: Of the model, in tokens.
        least: Whether the prompt has `tokens` or more.

    Raises:
        ApiError: 400, with OpenAI's code for it.
    """
    if tokens < context_length:
        return
    raise ApiError(
        400,
        f"This model's maximum context length is {context_length} tokens, but the messages take "
        f"{'at least ' if least else ''}{tokens}.",
        param="messages",
        code="context_length_exceeded",
    )


def check_images(urls: Sequence[str], limits: ProxyLimits) -> None:
    """Check images before they are decoded.

    Args:
        urls: `data:` URLs.
        limits: How many are allowed, and of how many pixels.

    Raises:
        ApiError: 400: one is elsewhere or cannot be read, or a limit is passed.
    """
    if any(not url.startswith("data:image/") for url in urls):
        raise invalid("messages", "an image must be a data URL, such as data:image/png;base64,...; none is fetched")
    check_count("messages", "images", len(urls), limits.max_images, "max_images")
    for url in urls:
        from PIL import Image

        try:
            with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
                width, height = image.size
        except Exception as error:  # Pillow's readers raise whatever a broken file leads them to
            raise invalid("messages", f"an image cannot be read: {error}") from None
        check_count("messages", "pixels of an image", width * height, limits.max_image_pixels, "max_image_pixels")


def _text_bytes(message: dict[str, Any]) -> int:
    content = message.get("content") or ""
    texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    texts += [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return sum(len(text) for text in texts)
