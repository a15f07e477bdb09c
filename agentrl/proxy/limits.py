"""The limits of a request, each checked before the work that it bounds.

bytes of the body ─► nesting of its JSON (`json_text.read_json`) ─► n, least tokens, pixels ─► rendered ─► tokens of the prompt
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from agentrl.config.proxy import ProxyLimits
from agentrl.proxy.errors import ApiError, invalid


def check_body(body: bytes, limits: ProxyLimits) -> None:
    """Check a body before it is read as JSON.

    Raises:
        ApiError: 413: it has too many bytes.
    """
    if len(body) > limits.max_request_bytes:
        raise too_large(limits)


def too_large(limits: ProxyLimits) -> ApiError:
    """Return the refusal of a body beyond the limit."""
    message = f"The request is larger than {limits.max_request_bytes} bytes (`proxy.max_request_bytes`)."
    return ApiError(413, message, code="request_too_large")


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


def check_length(tokens: int, context_length: int) -> None:
    """Check that a prompt leaves room for a reply.

    Args:
        tokens: Of the prompt, or fewer where it is not tokenised yet.
        context_length: Of the model, in tokens.

    Raises:
        ApiError: 400, with OpenAI's code for it.
    """
    if tokens < context_length:
        return
    raise ApiError(
        400,
        f"This model's maximum context length is {context_length} tokens, but the messages take at least {tokens}.",
        param="messages",
        code="context_length_exceeded",
    )


def check_images(urls: Sequence[str], limits: ProxyLimits) -> None:
    """Check images before they are decoded.

    Args:
        urls: `data:` URLs.
        limits: Of how many pixels one may be.

    Raises:
        ApiError: 400: one is elsewhere, cannot be read, or is larger.
    """
    if any(not url.startswith("data:image/") for url in urls):
        raise invalid("messages", "an image must be a data URL, such as data:image/png;base64,...; none is fetched")
    for url in urls:
        from PIL import Image

        try:
            with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
                width, height = image.size
        except Exception as error:  # Pillow's readers raise whatever a broken file leads them to
            raise invalid("messages", f"an image cannot be read: {error}") from None
        check_count("messages", "pixels of an image", width * height, limits.max_image_pixels, "max_image_pixels")
