"""Refuse an endpoint of somebody else's that does not answer, before any episode asks it."""

from __future__ import annotations

import httpx

from agentrl.errors import ConfigError, one_line
from agentrl.machine.privacy import without_secrets

ANSWER_TIMEOUT_S = 10.0


async def check_endpoint(base_url: str) -> None:
    """Check that something answers at an endpoint; what it answers does not matter.

    Args:
        base_url: Such as http://127.0.0.1:8000/v1.

    Raises:
        ConfigError: It is no URL, or nothing answers there.
    """
    shown = without_secrets(base_url)
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(f"`base_url` {shown} is no URL; write it with its scheme, as in http://{shown}")
    try:
        async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S) as client:
            await client.get(base_url.rstrip("/") + "/models")
    except (httpx.TransportError, httpx.InvalidURL, UnicodeError) as error:
        why = one_line(error) or type(error).__name__
        raise ConfigError(
            f"`base_url` {shown} does not answer: {why}; is the server running, and its port right?"
        ) from error
