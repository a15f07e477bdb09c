"""Keep the loopback out of HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, which clients of all kinds read from the environment.

Servers of agentrl's own, those of tools and environments, and those that a user starts beside it are on this machine. A proxy is on
another one, where 127.0.0.1 is the proxy itself.
"""

from __future__ import annotations

import os
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104  # the last as servers print their address


def is_loopback(url: str) -> bool:
    """Return whether a URL names this machine: its client then reads nothing from the environment (`trust_env=False`)."""
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):  # a name
        address = ip_address(host.removeprefix("::ffff:"))
        return address.is_loopback or address.is_unspecified
    return host == "localhost"


def exempt_loopback() -> None:
    """Add the loopback to NO_PROXY of this process, and so of the agents, servers and workers that it starts.

    Both spellings become alike, as some clients look at one only.
    """
    hosts = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(",")
    if hosts != ["*"]:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*filter(None, hosts), *LOOPBACK]))
