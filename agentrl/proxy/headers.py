"""The headers of requests that hold a key, and those of replies that clients read.

x-request-id, request-id           one id; the log has it where the proxy failed
openai-processing-ms               how long the reply, or its first event, took
x-ratelimit-*-requests,            `proxy.max_requests_per_session`, and how much of it other requests of the session leave; there is
anthropic-ratelimit-requests-*     no bound on tokens, and no time at which one is lifted, so nothing says so
x-stainless-retry-count            of a request that OpenAI's or Anthropic's client sends again, as it did not get the reply
retry-after                        with 429 and 503: what was in the way may be gone
x-should-retry: false              with 409: an episode that has ended does not come back, and OpenAI's and Anthropic's clients retry 409
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

RETRY_AFTER_S = 1
PREFLIGHT_AGE_S = 600
"""How long a browser remembers what it may send."""
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_\- ,]{0,2000}")
_EXPOSED = (
    "agentrl-ignored, anthropic-ratelimit-requests-limit, anthropic-ratelimit-requests-remaining, openai-processing-ms, request-id, "
    "retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-request-id"
)


def bearer_key(headers: Mapping[str, str]) -> str:
    """Return the key in `Authorization: Bearer KEY`."""
    return headers.get("authorization", "").removeprefix("Bearer ").strip()


def request_key(headers: Mapping[str, str], query: str) -> str:
    """Return the key of a request as OpenAI's, Anthropic's or Google's clients send it, `?key=` included."""
    key = headers.get("x-api-key") or headers.get("x-goog-api-key") or bearer_key(headers)
    return key or next(iter(parse_qs(query).get("key", [])), "")


def is_retry(headers: Mapping[str, str]) -> bool:
    """Return whether a client says that it sends the request again."""
    return headers.get("x-stainless-retry-count", "0").strip() not in ("", "0")


def rate_limit_headers(path: str, limit: int, in_work: int) -> dict[str, str]:
    """Return how many requests a session may have in work, and how many more that are, in the words of the API of `path`."""
    if ":" in path:
        return {}  # Google's replies have none
    left = str(max(0, limit - in_work))
    if path.startswith("/v1/messages"):
        return {"anthropic-ratelimit-requests-limit": str(limit), "anthropic-ratelimit-requests-remaining": left}
    return {"x-ratelimit-limit-requests": str(limit), "x-ratelimit-remaining-requests": left}


def retry_headers(status: int) -> dict[str, str]:
    """Return what a refusal says about another try."""
    if status in (429, 503):
        return {"retry-after": str(RETRY_AFTER_S)}
    return {"x-should-retry": "false"} if status == 409 else {}


def cors_headers(origins: Sequence[str], headers: Mapping[str, str]) -> dict[str, str]:
    """Return what lets a page of the request's origin read the reply; empty for origins that are not in `proxy.cors_origins`."""
    origin = headers.get("origin", "")
    if not origin or not ("*" in origins or origin in origins):
        return {}
    allowed = "*" if "*" in origins else origin
    return {"access-control-allow-origin": allowed, "access-control-expose-headers": _EXPOSED, "vary": "origin"}


def preflight_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what a page may send, which is what its browser asks for: a key is needed all the same."""
    asked = headers.get("access-control-request-headers", "")
    return {
        "access-control-allow-methods": "GET, HEAD, POST, DELETE",
        "access-control-allow-headers": asked if _HEADER_NAMES.fullmatch(asked) else "authorization, content-type",
        "access-control-max-age": str(PREFLIGHT_AGE_S),
    }
